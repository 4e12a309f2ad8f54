// Evidence of each kind.
import type { JSX } from "preact";
import { useCallback } from "preact/hooks";
import { PlotFigure } from "../charts/plot-figure";
import { drawSeries } from "../charts/series-chart";
import { formatDuration } from "../format";
import type { FindingInfo, SeriesEvidence, SpanEvidence } from "../report";
import { EventEvidence } from "./event-evidence";
import { Prose } from "./prose";
import { Table } from "./table";
import { Timeline } from "./timeline";

type Item = FindingInfo["evidence"][number];

export function Evidence({ item, captureId }: { item: Item; captureId: string }): JSX.Element {
  return (
    <figure class="evidence">
      <figcaption>{item.title}</figcaption>
      {item.kind === "events" && <EventEvidence evidence={item} captureId={captureId} />}
      {item.kind === "span" && <Span evidence={item} captureId={captureId} />}
      {item.kind === "table" && <Table {...item} caption={item.title} />}
      {item.kind === "series" && <Series evidence={item} />}
    </figure>
  );
}

function Span({ evidence, captureId }: { evidence: SpanEvidence; captureId: string }): JSX.Element {
  const durationNs = evidence.end_ns - evidence.start_ns;
  return (
    <>
      <p>
        <Prose text={evidence.note} />{" "}
        <span class="muted">
          {formatDuration(durationNs)} on {evidence.track}
        </span>
      </p>
      <Timeline
        captureId={captureId}
        worker={evidence.worker}
        focus={{ startNs: evidence.start_ns, durationNs, name: evidence.title }}
      />
    </>
  );
}

function Series({ evidence }: { evidence: SeriesEvidence }): JSX.Element {
  const draw = useCallback(() => drawSeries(evidence), [evidence]);
  return <PlotFigure label={evidence.title} draw={draw} />;
}
