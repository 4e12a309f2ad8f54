// Memory over time, and what is allocated at the peak.
import type { JSX } from "preact";
import { formatBytes, formatCount, formatPlural, formatShare } from "../format";
import type { MemoryHolder, MemoryView, Report } from "../report";
import { fetchView } from "../state/api";
import { asWords } from "../text";
import { Fetched } from "../widgets/fetched";
import { Head } from "../widgets/head";
import { LongName } from "../widgets/name";
import { type Column, SortableTable } from "../widgets/sortable-table";
import { MemoryCourse } from "./memory-course";
import { SnapshotOf } from "./snapshot";

interface Props {
  report: Report;
  captureId: string;
}

export function MemoryPage({ captureId }: Props): JSX.Element {
  return (
    <Fetched
      of={captureId}
      fetch={(signal) =>
        Promise.all([fetchView(captureId, "memory", signal), fetchView(captureId, "snapshot", signal)])
      }
    >
      {([view, snapshot]) => (
        <>
          {view && <MemoryOf view={view} captureId={captureId} />}
          {snapshot && <SnapshotOf view={snapshot} captureId={captureId} isAlone={view === null} />}
        </>
      )}
    </Fetched>
  );
}

const peakBytes = (view: MemoryView): number => Math.max(0, ...view.allocated_bytes);

/** One sentence: the peak, and its share of the capacity. */
export function describeMemory(view: MemoryView): string {
  const where = view.device === null ? "host" : "device";
  const origin = view.is_relative ? " above the start of the recording" : "";
  const peak = `Peak ${where} memory: ${formatBytes(peakBytes(view))}${origin}`;
  if (!view.capacity_bytes || view.is_relative || view.device === null) return peak;
  return `${peak}, ${formatShare(peakBytes(view) / view.capacity_bytes)} of capacity`;
}

function MemoryOf({ view, captureId }: { view: MemoryView; captureId: string }): JSX.Element {
  const reserved = view.reserved_bytes === null ? null : Math.max(0, ...view.reserved_bytes);
  return (
    <>
      <Head
        title={describeMemory(view)}
        facts={[
          `${formatPlural(view.changes, "change")} recorded`,
          reserved !== null && `${formatBytes(reserved)} reserved by the allocator`,
          view.capacity_bytes !== null && view.device !== null && `${formatBytes(view.capacity_bytes)} device capacity`,
        ]}
      />
      <MemoryCourse
        view={view}
        captureId={captureId}
        label={describeMemory(view)}
        holder={describeHolder(view)}
        note={view.batch_room && describeBatchRoom(view.batch_room)}
      />
      <section aria-labelledby="alive">
        <div class="section-head">
          <h2 id="alive">Allocated at the peak</h2>
        </div>
        {view.alive.length > 0 ? (
          <SortableTable
            caption="Allocated at the peak"
            columns={holderColumns(view)}
            rows={view.alive}
            sort={{ key: "bytes", isDescending: true }}
            truncated={view.alive_truncated}
            filterLabel="Find an operator or module"
          />
        ) : (
          <p class="muted">The profile has only totals, so it does not show what holds the memory.</p>
        )}
      </section>
    </>
  );
}

/** One sentence: which operator allocated most that is there at the peak. */
export function describeHolder({ alive }: MemoryView): string {
  const [holder] = alive.filter(({ operator }) => operator !== null);
  return holder ? `Most that was allocated in the recording is from ${holder.operator}: ${formatBytes(holder.bytes)}.` : "";
}

/** One sentence: how large a batch may be. */
export function describeBatchRoom({ low, high }: { low: number; high: number }): string {
  if (high < 1) return "A smaller batch is needed to stay below 90 % of the memory.";
  const [least, most] = [Math.max(low, 1).toFixed(1), high.toFixed(1)];
  const times = least === most ? most : `${least} to ${most}`;
  return `A batch of ${times} times the size would fill 90 % of the device’s memory.`;
}

const operatorOf = ({ operator, phase }: MemoryHolder): string =>
  operator ?? (phase === "before-recording" ? "before the recording" : "no recorded operator");

function holderColumns(view: MemoryView): Column<MemoryHolder>[] {
  const peak = peakBytes(view);
  const columns: Column<MemoryHolder>[] = [
    {
      key: "operator",
      label: "Allocated by",
      unit: null,
      value: operatorOf,
      render: (holder) =>
        holder.operator === null ? <span class="muted">{operatorOf(holder)}</span> : <LongName name={holder.operator} />,
    },
    { key: "share", label: "Share of peak", unit: "share", value: ({ bytes }) => (peak > 0 ? bytes / peak : null) },
    { key: "bytes", label: "Memory", unit: "bytes", value: ({ bytes }) => bytes },
    { key: "phase", label: "Phase", unit: null, value: ({ phase }) => asWords(phase) },
    { key: "module", label: "Module", unit: null, value: ({ module }) => module },
    {
      key: "count",
      label: "Allocations",
      unit: "count",
      value: ({ count }) => count,
      render: ({ count }) => (count === null ? "–" : formatCount(count)),
    },
  ];
  return columns.filter(({ value }) => view.alive.some((holder) => value(holder) !== null));
}
