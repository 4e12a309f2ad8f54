// One piece of evidence, of any kind.
import type { JSX } from "preact";
import { useCallback } from "preact/hooks";
import { PlotFigure } from "../charts/plot-figure";
import { drawSeries } from "../charts/series-chart";
import { formatDuration } from "../format";
import type { FindingInfo, SeriesEvidence, SpanEvidence } from "../report";
import { Below } from "../state/linked";
import { asSentence } from "../text";
import { EventTable } from "./events";
import { Prose } from "../widgets/prose";
import { PlainTable } from "../widgets/plain-table";
import { Timeline } from "../timeline/timeline";

/** Timelines that share this part of the longer stretch look alike. */
const SAME_SHARE = 0.8;

type Item = FindingInfo["evidence"][number];

interface Props<T> {
  item: T;
  captureId: string;
  /** The index of the finding in the report. */
  findingIndex: number;
  /** Whether an item above has a timeline of the same stretch. */
  isRepeated: boolean;
}

export function EvidenceList({ items, ...rest }: { items: Item[] } & Omit<Props<Item>, "item" | "isRepeated">): JSX.Element {
  const repeated = findRepeated(items);
  return (
    <>
      {items.map((item, index) => (
        <Below key={index} name={String(index)}>
          <Evidence item={item} isRepeated={repeated[index] ?? false} {...rest} />
        </Below>
      ))}
    </>
  );
}

interface Stretch {
  worker: number;
  startNs: number;
  endNs: number;
}

/** What the timeline of an item shows at first. */
function stretchOf(item: Item): Stretch | null {
  if (item.kind === "span") return { worker: item.worker, startNs: item.start_ns, endNs: item.end_ns };
  const row = item.kind === "events" ? item.rows[0] : undefined;
  return row ? { worker: row.worker, startNs: row.start_ns, endNs: row.start_ns + row.duration_ns } : null;
}

const isSame = (a: Stretch, b: Stretch): boolean => {
  const sharedNs = Math.min(a.endNs, b.endNs) - Math.max(a.startNs, b.startNs);
  const longerNs = Math.max(a.endNs - a.startNs, b.endNs - b.startNs);
  return a.worker === b.worker && sharedNs >= SAME_SHARE * longerNs;
};

/** For each item, whether an item above it has a timeline of the same stretch. */
export function findRepeated(items: Item[]): boolean[] {
  const stretches = items.map(stretchOf);
  return stretches.map(
    (stretch, index) =>
      stretch !== null && stretches.slice(0, index).some((above) => above !== null && isSame(above, stretch)),
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

function Span({ item: evidence, isRepeated, captureId, findingIndex }: Props<SpanEvidence>): JSX.Element {
  const durationNs = evidence.end_ns - evidence.start_ns;
  return (
    <>
      <p>
        <Prose text={asSentence(evidence.note)} />{" "}
        <span class="muted">
          {formatDuration(durationNs)} on {evidence.track}
        </span>
      </p>
      {!isRepeated && (
        <Timeline
          captureId={captureId}
          findings={[findingIndex]}
          worker={evidence.worker}
          focus={{ startNs: evidence.start_ns, durationNs, name: evidence.title }}
        />
      )}
    </>
  );
}

function Series({ evidence }: { evidence: SeriesEvidence }): JSX.Element {
  const draw = useCallback(() => drawSeries(evidence), [evidence]);
  return <PlotFigure label={evidence.title} draw={draw} />;
}
