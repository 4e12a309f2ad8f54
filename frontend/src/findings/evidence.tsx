// One piece of evidence, of any kind.
import type { JSX } from "preact";
import { useCallback } from "preact/hooks";
import { PlotFigure } from "../charts/plot-figure";
import { drawSeries } from "../charts/series-chart";
import { formatDuration } from "../format";
import type { FindingInfo, SeriesEvidence, SpanEvidence } from "../report";
import { asSentence } from "../text";
import { EventTable } from "./events";
import { Prose } from "../widgets/prose";
import { PlainTable } from "../widgets/plain-table";
import { Timeline } from "./timeline";

type Item = FindingInfo["evidence"][number];

interface Props<T> {
  item: T;
  captureId: string;
  /** The index of the finding in the report. */
  findingIndex: number;
}

export function Evidence({ item, ...rest }: Props<Item>): JSX.Element {
  return (
    <figure class="evidence">
      <figcaption>{item.title}</figcaption>
      {item.kind === "events" && <EventTable evidence={item} {...rest} />}
      {item.kind === "span" && <Span item={item} {...rest} />}
      {item.kind === "table" && <PlainTable {...item} caption={item.title} />}
      {item.kind === "series" && <Series evidence={item} />}
    </figure>
  );
}

function Span({ item: evidence, ...rest }: Props<SpanEvidence>): JSX.Element {
  const durationNs = evidence.end_ns - evidence.start_ns;
  return (
    <>
      <p>
        <Prose text={asSentence(evidence.note)} />{" "}
        <span class="muted">
          {formatDuration(durationNs)} on {evidence.track}
        </span>
      </p>
      <Timeline
        {...rest}
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
