// Memory: its course, and what was alive when there was most of it.
import type { JSX } from "preact";
import { useCallback } from "preact/hooks";
import { fetchView } from "../api";
import { drawMemory } from "../charts/memory-chart";
import { PlotFigure } from "../charts/plot-figure";
import { formatBytes, formatCount, formatPlural, formatShare } from "../format";
import type { MemoryHolder, MemoryView, Report } from "../report";
import { asWords } from "../text";
import { type Column, DataTable, LongName } from "./data-table";
import { Fetched, Nothing } from "./fetched";

interface Props {
  report: Report;
  captureId: string;
}

export function Memory({ report, captureId }: Props): JSX.Element {
  return (
    <Fetched of={captureId} fetch={(signal) => fetchView(captureId, "memory", signal)}>
      {(view) =>
        view === null ? (
          <Nothing title="Memory was not recorded">
            <p>
              {report.framework === "pytorch" ? (
                <>
                  Record with <code>profile(profile_memory=True, record_shapes=True)</code>: then every allocation
                  is in the trace, with the operator that asked for it.
                </>
              ) : (
                "TensorFlow and JAX record their allocators on GPUs and on the CPU; on this profile’s device they did not."
              )}
            </p>
          </Nothing>
        ) : (
          <MemoryOf view={view} />
        )
      }
    </Fetched>
  );
}

const peakBytes = (view: MemoryView): number => Math.max(0, ...view.allocated_bytes);

/** One sentence: the peak, and how much of the device it is. */
export function describeMemory(view: MemoryView): string {
  const where = view.device === null ? "host memory" : "device memory";
  const more = view.is_relative ? " more than at the recording’s start" : "";
  const peak = `At its peak the program holds ${formatBytes(peakBytes(view))} of ${where}${more}`;
  if (!view.capacity_bytes || view.is_relative || view.device === null) return peak;
  return `${peak}, ${formatShare(peakBytes(view) / view.capacity_bytes)} of it`;
}

function MemoryOf({ view }: { view: MemoryView }): JSX.Element {
  const draw = useCallback((width: number) => drawMemory(view, width), [view]);
  const reserved = view.reserved_bytes === null ? null : Math.max(0, ...view.reserved_bytes);
  return (
    <>
      <header class="headline">
        <h1>{describeMemory(view)}</h1>
        <p class="subline">
          <span>{formatPlural(view.changes, "change")} recorded</span>
          {reserved !== null && <span>{formatBytes(reserved)} held by the allocator</span>}
          {view.capacity_bytes !== null && view.device !== null && <span>{formatBytes(view.capacity_bytes)} on the device</span>}
        </p>
      </header>
      <section class="card" aria-labelledby="course">
        <div class="card-head">
          <h2 id="course">Memory over time</h2>
          <p class="muted">dotted lines end steps</p>
        </div>
        <PlotFigure label={`${describeMemory(view)}.`} draw={draw} />
        <ul class="legend-row">
          <li>
            <span class="swatch" style={{ background: "var(--accent)" }} aria-hidden="true" /> allocated
          </li>
          {reserved !== null && (
            <li>
              <span class="swatch" style={{ background: "var(--cause-communication)" }} aria-hidden="true" /> held by the
              allocator
            </li>
          )}
        </ul>
      </section>
      <section aria-labelledby="alive">
        <div class="section-head">
          <h2 id="alive">What is alive at the peak</h2>
        </div>
        {view.alive.length > 0 ? (
          <DataTable
            caption="What is alive at the peak"
            columns={holderColumns(view)}
            rows={view.alive}
            sort={{ key: "bytes", isDescending: true }}
            truncated={view.alive_truncated}
            filterLabel="Find an operator or module"
          />
        ) : (
          <p class="muted">The profile has totals alone: who holds the memory is not in it.</p>
        )}
      </section>
    </>
  );
}

function holderColumns(view: MemoryView): Column<MemoryHolder>[] {
  const peak = peakBytes(view);
  const columns: Column<MemoryHolder>[] = [
    {
      key: "operator",
      label: "Asked for by",
      unit: null,
      value: ({ operator, phase }) =>
        operator ?? (phase === "before-recording" ? "before the recording" : "no operator that was recorded"),
      render: ({ operator, phase }) =>
        operator === null ? (
          <span class="muted">{phase === "before-recording" ? "before the recording" : "no operator that was recorded"}</span>
        ) : (
          <LongName name={operator} />
        ),
    },
    { key: "module", label: "Module", unit: null, value: ({ module }) => module },
    { key: "phase", label: "Phase", unit: null, value: ({ phase }) => asWords(phase) },
    { key: "bytes", label: "Memory", unit: "bytes", value: ({ bytes }) => bytes },
    { key: "share", label: "Of the peak", unit: "share", value: ({ bytes }) => (peak > 0 ? bytes / peak : null) },
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
