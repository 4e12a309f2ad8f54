// What takes the time of a range that is selected, by cause, operator, kernel, stream and line, and beside it the
// same range of another step or run.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { formatDuration } from "../format";
import type { RangeSums } from "../state/answers";
import { fetchSums } from "../state/api";
import { captureName } from "../state/capture-name";
import { useLinked } from "../state/linked";
import { captures } from "../state/store";
import { CloseButton } from "../widgets/close-button";
import { Fetched } from "../widgets/fetched";
import { type Column, SortableTable } from "../widgets/sortable-table";
import { Tabs } from "../widgets/tabs";
import { type ComparedSum, PARTS, type Part, comparedRows, parseBeside, timeOf } from "./compared-sums";
import { type Range, formatRange } from "./range";

interface Props {
  captureId: string;
  /** The range is on its clock. */
  worker: number;
  range: Range;
  fit(): void;
  close(): void;
  /** Finds the events of a name. */
  find(name: string): void;
}

const LABELS: Record<Part, string> = {
  causes: "Causes", operators: "Operators", kernels: "Kernels", streams: "Streams", lines: "Lines",
};
const MOST_STEPS = 200;

export function RangeSumsPanel({ captureId, worker, range, fit, close, find }: Props): JSX.Element {
  const [beside, setBeside] = useLinked("beside");
  const fetchBoth = async (signal: AbortSignal): Promise<[RangeSums, RangeSums | null]> => {
    const sums = await fetchSums(captureId, { worker, ...range }, signal);
    const other = parseBeside(beside);
    if (other === null) return [sums, null];
    const part = { fromPart: sums.step?.from_part ?? 0, toPart: sums.step?.to_part ?? 1 };
    if ("step" in other) return [sums, await fetchSums(captureId, { step: other.step, ...part }, signal)];
    return [sums, await fetchSums(other.run, { step: null, ...part }, signal)];
  };
  return (
    <section class="timeline-sums" aria-label="Time in the selected range">
      <div class="timeline-chosen-head">
        <strong>{formatDuration(range.toNs - range.fromNs)} selected</strong>
        <button type="button" onClick={fit}>
          Zoom to it
        </button>
        <CloseButton label="Close the range" onClick={close} />
      </div>
      <Fetched of={`${captureId} ${worker} ${formatRange(range)} ${beside}`} fetch={fetchBoth}>
        {([sums, other]) => (
          <>
            <BesideChoice captureId={captureId} sums={sums} beside={beside} choose={setBeside} />
            <SumsOf sums={sums} other={other} find={find} />
          </>
        )}
      </Fetched>
    </section>
  );
}

/** Another step, or another run that has a report. */
function BesideChoice(props: { captureId: string; sums: RangeSums; beside: string; choose(beside: string): void }): JSX.Element {
  const { captureId, sums, beside, choose } = props;
  const known = captures.value.state === "ready" ? captures.value.value.captures : [];
  const runs = known.filter(({ id, status }) => id !== captureId && status === "done");
  const steps = sums.steps.filter((number) => number !== sums.step?.number).slice(0, MOST_STEPS);
  return (
    <label class="timeline-about">
      Compare with the same part of{" "}
      <select value={beside} onChange={({ currentTarget }) => choose(currentTarget.value)}>
        <option value="">nothing</option>
        {sums.step && steps.map((number) => <option key={number} value={`step-${number}`}>step {number}</option>)}
        {runs.map(({ id }) => (
          <option key={id} value={`run-${id}`}>
            a typical step of {captureName(id, known)}
          </option>
        ))}
      </select>
    </label>
  );
}

function SumsOf({ sums, other, find }: { sums: RangeSums; other: RangeSums | null; find(name: string): void }): JSX.Element {
  const parts = PARTS.filter((part) => comparedRows(sums, other, part).length > 0);
  const otherNs = other && other.to_ns - other.from_ns;
  return (
    <>
      {sums.causes.length === 0 && <p class="muted">No step that is analyzed lies in this range.</p>}
      {other && (
        <p class="muted">
          {formatDuration(otherNs)} beside it{other.step && `, in step ${other.step.number}`}
        </p>
      )}
      <Tabs
        label="Sums"
        tabs={parts.map((part) => ({ name: LABELS[part], content: <SumTable key={part} sums={sums} other={other} part={part} find={find} /> }))}
      />
    </>
  );
}

interface TableProps {
  sums: RangeSums;
  other: RangeSums | null;
  part: Part;
  find(name: string): void;
}

function SumTable({ sums, other, part, find }: TableProps): JSX.Element {
  const rows = useMemo(() => comparedRows(sums, other, part), [sums, other, part]);
  const spanNs = sums.to_ns - sums.from_ns;
  const isCauses = part === "causes";
  const canFind = part === "operators" || part === "kernels";
  const hasBoth = sums.has_device && (part === "operators" || part === "lines");
  const columns: Column<ComparedSum>[] = [
    {
      key: "name", label: LABELS[part].replace(/s$/, ""), unit: null, value: ({ name }) => name, isLongName: !isCauses,
      ...(canFind ? { open: ({ name }) => find(name) } : {}),
    },
    { key: "time", label: hasBoth ? "Device time" : "Time", unit: "ns", value: (row) => timeOf(sums, row) },
    { key: "share", label: "Of the range", unit: "share", value: (row) => timeOf(sums, row) / spanNs },
    ...(hasBoth ? [{ key: "own", label: "Own time on the host", unit: "ns", value: ({ ownNs }: ComparedSum) => ownNs }] : []),
    ...(isCauses ? [] : [{ key: "count", label: "Count", unit: "count", value: ({ count }: ComparedSum) => count }]),
    ...(other
      ? [
          { key: "other", label: "Beside it", unit: "ns", value: ({ otherNs }: ComparedSum) => otherNs },
          { key: "change", label: "Difference", unit: "ns", value: ({ changeNs }: ComparedSum) => changeNs },
        ]
      : []),
  ];
  return (
    <SortableTable
      caption={`${LABELS[part]} in the range`}
      columns={columns}
      rows={rows}
      filterLabel="Find a name"
      truncated={isCauses ? 0 : sums[part].truncated}
    />
  );
}
