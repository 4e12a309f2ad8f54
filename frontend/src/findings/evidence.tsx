// What proves a finding: tables, charts, events and stretches of time.
import type { JSX } from "preact";
import { useCallback } from "preact/hooks";
import { PlotFigure } from "../charts/plot-figure";
import { drawSeries } from "../charts/series-chart";
import { formatDuration } from "../format";
import type { FindingInfo, SeriesEvidence, SpanEvidence } from "../report";
import { Below } from "../state/linked";
import { asSentence } from "../text";
import { EventTable } from "./events";
import { useChosenEvent } from "./finding-timeline";
import { Prose } from "../widgets/prose";
import { PlainTable } from "../widgets/plain-table";

type Item = FindingInfo["evidence"][number];

interface Props<T> {
  item: T;
  /** The row that is chosen. */
  chosen: number | null;
  choose(row: number | null): void;
}

/** The evidence of a finding, below its name. */
export function EvidenceList({ items }: { items: Item[] }): JSX.Element {
  const [event, chooseEvent] = useChosenEvent();
  return (
    <>
      {items.map((item, place) => (
        <Below key={place} name={String(place)}>
          <Evidence
            item={item}
            chosen={event?.item === place ? event.row : null}
            choose={(row) => chooseEvent(row === null ? null : { item: place, row })}
          />
        </Below>
      ))}
    </>
  );
}

function Evidence({ item, ...rest }: Props<Item>): JSX.Element {
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

function Span({ item: evidence, chosen, choose }: Props<SpanEvidence>): JSX.Element {
  return (
    <p>
      <Prose text={asSentence(evidence.note)} />{" "}
      <button type="button" class="link-button" aria-pressed={chosen !== null} onClick={() => choose(chosen === null ? 0 : null)}>
        {formatDuration(evidence.end_ns - evidence.start_ns)} on {evidence.track}
      </button>
    </p>
  );
}

function Series({ evidence }: { evidence: SeriesEvidence }): JSX.Element {
  const draw = useCallback(() => drawSeries(evidence), [evidence]);
  return <PlotFigure label={evidence.title} draw={draw} />;
}
