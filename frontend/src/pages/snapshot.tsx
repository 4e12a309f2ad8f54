// A memory snapshot: memory over time, who holds the peak, what grew, what is reserved, what failed.
import type { JSX } from "preact";
import { formatBytes, formatPlural, formatShare } from "../format";
import type { LineHolder, SnapshotDevice, SnapshotFailure, SnapshotGrowth, SnapshotReserved, SnapshotView } from "../report";
import { Below, nameInLink, useFlag } from "../state/linked";
import { Head } from "../widgets/head";
import { LongName } from "../widgets/name";
import { PlainTable } from "../widgets/plain-table";
import { type Column, SortableTable } from "../widgets/sortable-table";
import { MemoryCourse } from "./memory-course";

const EARLIER = "before the history, or an unknown line";

const lowerFirst = (text: string): string => text.charAt(0).toLowerCase() + text.slice(1);

/** One sentence: that memory ran out, or the peak and its share of the capacity. */
export function describeSnapshot(view: SnapshotView): string {
  if (view.failure) {
    const { requested_bytes: requested, is_in_pieces: isInPieces } = view.failure;
    return `Out of memory: ${formatBytes(requested)} could not be allocated, ${isInPieces ? "as what was free is in pieces" : "as too little was free"}`;
  }
  const peak = `Peak device memory: ${formatBytes(view.peak_allocated_bytes)}`;
  if (!view.capacity_bytes) return peak;
  return `${peak}, ${formatShare(view.peak_allocated_bytes / view.capacity_bytes)} of capacity`;
}

export function SnapshotOf({ view, captureId, isAlone }: { view: SnapshotView; captureId: string; isAlone: boolean }): JSX.Element {
  const [holder] = view.alive.filter(({ line }) => line !== null);
  return (
    <>
      <Head
        isPart={!isAlone}
        title={isAlone ? describeSnapshot(view) : `Memory snapshot: ${lowerFirst(describeSnapshot(view))}`}
        facts={[
          view.file,
          formatPlural(view.events, "event"),
          `${formatBytes(view.peak_reserved_bytes)} reserved by the allocator`,
          view.capacity_bytes !== null && `${formatBytes(view.capacity_bytes)} device capacity`,
        ]}
      />
      {view.failure !== null && <Failure failure={view.failure} />}
      <Below name="snapshot">
        <MemoryCourse
          view={view}
          captureId={captureId}
          label={`Peak device memory: ${formatBytes(view.peak_allocated_bytes)}`}
          holder={holder ? `The line that allocated most of it is ${holder.line}: ${formatBytes(holder.bytes)}.` : ""}
          isSnapshot
        />
      </Below>
      {!view.is_whole && <p class="muted">The history does not end in the state of the snapshot, so a part of it is missing.</p>}
      <section aria-labelledby="snapshot-alive">
        <div class="section-head">
          <h2 id="snapshot-alive">Allocated at the peak</h2>
        </div>
        <SortableTable
          caption="Allocated at the peak, by line"
          columns={lineColumns(view.peak_allocated_bytes)}
          rows={view.alive}
          sort={{ key: "bytes", isDescending: true }}
          truncated={view.alive_truncated}
          filterLabel="Find a line"
        />
      </section>
      {view.growth !== null && <Growth growth={view.growth} />}
      <Reserved reserved={view.reserved} />
      {view.devices.length > 1 && <Devices devices={view.devices} />}
    </>
  );
}

function lineColumns(total: number): Column<LineHolder>[] {
  return [
    {
      key: "line",
      label: "Allocated at",
      unit: null,
      value: ({ line }) => line ?? EARLIER,
      render: (holder) =>
        holder.line === null ? (
          <span class="muted">{EARLIER}</span>
        ) : (
          <>
            <LongName name={holder.line} />
            {holder.frames.length > 1 && <CallStack frames={holder.frames} />}
          </>
        ),
    },
    { key: "share", label: "Share", unit: "share", value: ({ bytes }) => (total > 0 ? bytes / total : null) },
    { key: "bytes", label: "Memory", unit: "bytes", value: ({ bytes }) => bytes },
    { key: "count", label: "Allocations", unit: "count", value: ({ count }) => count },
  ];
}

function CallStack({ frames }: { frames: string[] }): JSX.Element {
  const [isOpen, setOpen] = useFlag(`stack.${nameInLink(frames.join(" "))}`);
  return (
    <details class="call-stack" open={isOpen} onToggle={({ currentTarget }) => setOpen(currentTarget.open)}>
      <summary>Call stack</summary>
      <ol>
        {frames.map((frame, index) => (
          <li key={index}>{frame}</li>
        ))}
      </ol>
    </details>
  );
}

const SIZE_COLUMNS = [
  { key: "what", label: "What", unit: "" },
  { key: "bytes", label: "Memory", unit: "bytes" },
];

function Failure({ failure }: { failure: SnapshotFailure }): JSX.Element {
  const rows = [
    ["requested", failure.requested_bytes],
    ["left by the driver", failure.driver_free_bytes],
    ["reserved by the allocator", failure.reserved_bytes],
    ["of it allocated", failure.allocated_bytes],
    ["largest free block of the allocator", failure.largest_free_bytes],
    ["largest request that would have fit", failure.largest_fit_bytes],
  ];
  return (
    <section aria-labelledby="snapshot-failure">
      <div class="section-head">
        <h2 id="snapshot-failure">What failed</h2>
      </div>
      <p class="section-lead">
        {formatBytes(failure.requested_bytes)} could not be allocated{failure.line && ` at ${failure.line}`}.
        {failure.count > 1 && ` It was the last of ${failure.count} failures.`}
      </p>
      <PlainTable columns={SIZE_COLUMNS} rows={rows} truncated={0} caption="When the allocation failed" />
    </section>
  );
}

function Growth({ growth }: { growth: SnapshotGrowth }): JSX.Element {
  const first = growth.steps[0];
  const last = growth.steps.at(-1);
  const grown = first && last ? last.allocated_bytes - first.allocated_bytes : 0;
  const change = grown > 0 ? `${formatBytes(grown)} more` : grown < 0 ? `${formatBytes(-grown)} less` : "as much";
  const kept = growth.kept.reduce((sum, { bytes }) => sum + bytes, 0);
  return (
    <section aria-labelledby="snapshot-growth">
      <div class="section-head">
        <h2 id="snapshot-growth">What grew</h2>
      </div>
      <p class="section-lead">
        {growth.is_inferred
          ? `The history has no steps, so it was cut into ${growth.source}: at its emptiest, the last one holds ${change} than the first.`
          : `Of ${formatPlural(growth.steps.length, "step")} (${growth.source}), the last one begins with ${change} than the first.`}
      </p>
      {growth.kept.length > 0 && (
        <SortableTable caption="Allocated after the second step and never freed" columns={lineColumns(kept)} rows={growth.kept} />
      )}
    </section>
  );
}

function Reserved({ reserved }: { reserved: SnapshotReserved }): JSX.Element {
  const rows = [
    ["in use", reserved.allocated_bytes],
    ["free, in segments that are in use", reserved.in_pieces_bytes],
    ["free segments, which empty_cache() would give back", reserved.in_free_segments_bytes],
    ["largest free block", reserved.largest_free_bytes],
  ];
  return (
    <section aria-labelledby="snapshot-reserved">
      <div class="section-head">
        <h2 id="snapshot-reserved">Reserved when the snapshot was taken</h2>
      </div>
      <p class="section-lead">
        {formatBytes(reserved.reserved_bytes)} in {formatPlural(reserved.segments, "segment")}.
      </p>
      <PlainTable columns={SIZE_COLUMNS} rows={rows} truncated={0} caption="Reserved memory" />
    </section>
  );
}

function Devices({ devices }: { devices: SnapshotDevice[] }): JSX.Element {
  const columns = [
    { key: "rank", label: "Rank", unit: "count" },
    { key: "device", label: "Device", unit: "count" },
    { key: "allocated", label: "Peak allocated", unit: "bytes" },
    { key: "reserved", label: "Peak reserved", unit: "bytes" },
  ];
  const rows = devices.map(({ rank, device, allocated_bytes: allocated, reserved_bytes: reserved }) => [
    rank, device, allocated, reserved,
  ]);
  return (
    <section aria-labelledby="snapshot-devices">
      <div class="section-head">
        <h2 id="snapshot-devices">All devices</h2>
      </div>
      <PlainTable columns={columns} rows={rows} truncated={0} caption="Peaks by device" />
    </section>
  );
}
