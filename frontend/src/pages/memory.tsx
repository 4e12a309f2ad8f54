// Memory over time, and what is allocated at the peak.
import type { JSX } from "preact";
import { useCallback } from "preact/hooks";
import { fetchView } from "../state/api";
import { isExported } from "../state/exported";
import { slug, useLinked } from "../state/linked";
import { captures } from "../state/store";
import { CATEGORIES, type Extent, PHASES, drawMemory, extentOf, phaseStretches } from "../charts/memory-chart";
import { PlotFigure } from "../charts/plot-figure";
import { formatBytes, formatCount, formatDuration, formatPlural, formatShare } from "../format";
import type { MemoryHolder, MemoryView, Report } from "../report";
import { asWords } from "../text";
import { LongName } from "../widgets/name";
import { type Column, SortableTable } from "../widgets/sortable-table";
import { Fetched } from "../widgets/fetched";
import { Fold } from "../widgets/fold";
import { Head } from "../widgets/head";
import { captureName } from "../state/capture-name";
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
          {snapshot && <SnapshotOf view={snapshot} isAlone={view === null} />}
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

/** When the peak is, and what it mostly holds. */
export function explainPeak(view: MemoryView): string {
  const peakNs = view.peak_at_ns - (view.at_ns[0] ?? 0);
  const phase = phaseStretches(view, Infinity).find(({ from, to }) => from <= peakNs && peakNs < to)?.phase;
  const place = view.step_end_ns.findIndex((endNs) => view.peak_at_ns <= endNs);
  const step = place < 0 ? "" : ` of step ${view.step[place]}`;
  const where = phase ? `in the ${phase} pass${step}` : step && `before the end${step}`;
  const held = view.categories.reduce((sum, { bytes }) => sum + bytes, 0);
  const largest = view.categories.slice(0, 3).map(({ category, bytes }) => `${formatShare(bytes / held)} ${categoryLabel(category)}`);
  const [holder] = view.alive.filter(({ operator }) => operator !== null);
  const parts = [
    `The peak is ${[`${formatDuration(peakNs)} after the first change`, where].filter(Boolean).join(", ")}.`,
    largest.length > 0 && `It holds ${largest.join(", ")}.`,
    holder && `Most that was allocated in the recording is from ${holder.operator}: ${formatBytes(holder.bytes)}.`,
  ];
  return parts.filter(Boolean).join(" ");
}

const categoryLabel = (category: string): string => CATEGORIES[category]?.label ?? category;

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
      <section class="card" aria-labelledby="course">
        <div class="card-head">
          <h2 id="course">Memory over time</h2>
          <p class="muted">dotted lines: ends of steps</p>
        </div>
        <Courses view={view} captureId={captureId} />
        <p class="muted table-note">{explainPeak(view)}</p>
      </section>
      {view.categories.length > 0 && (
        <section aria-labelledby="categories">
          <div class="section-head">
            <h2 id="categories">What the peak holds</h2>
          </div>
          <SortableTable caption="What the peak holds" columns={categoryColumns(view)} rows={view.categories} />
          <p class="muted table-note">
            By the life of each allocation: <em>activations</em> live from the forward to the backward pass, <em>gradients</em>{" "}
            from the backward pass to the optimizer. Trained parameters are as large as their gradients.
            {view.batch_room && ` ${describeBatchRoom(view.batch_room)}`}
          </p>
        </section>
      )}
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

/** The course of this run, and below it that of another one on the same axes. */
function Courses({ view, captureId }: { view: MemoryView; captureId: string }): JSX.Element {
  const [other, setOther] = useLinked("other");
  const known = captures.value.state === "ready" && !isExported ? captures.value.value.captures : [];
  const others = known.filter(({ id, status }) => id !== captureId && status === "done");
  const chosen = others.find(({ id }) => id === other);
  return (
    <>
      {others.length > 0 && (
        <label class="timeline-about">
          Compare with{" "}
          <select value={chosen?.id ?? ""} onChange={({ currentTarget }) => setOther(currentTarget.value)}>
            <option value="">no other run</option>
            {others.map(({ id }) => (
              <option key={id} value={id}>
                {captureName(id, known)}
              </option>
            ))}
          </select>
        </label>
      )}
      {chosen ? (
        <Fetched of={chosen.id} fetch={(signal) => fetchView(chosen.id, "memory", signal)}>
          {(below) => {
            if (!below) {
              return (
                <>
                  <CourseFigure view={view} />
                  <p class="muted">{captureName(chosen.id, known)} has no changes of memory.</p>
                </>
              );
            }
            const [a, b] = [extentOf(view), extentOf(below)];
            const extent = { ns: Math.max(a.ns, b.ns), bytes: Math.max(a.bytes, b.bytes) };
            return (
              <>
                <CourseFigure name={captureName(captureId, known)} view={view} extent={extent} />
                <CourseFigure name={captureName(chosen.id, known)} view={below} extent={extent} />
              </>
            );
          }}
        </Fetched>
      ) : (
        <CourseFigure view={view} />
      )}
    </>
  );
}

function CourseFigure({ name = "", view, extent }: { name?: string; view: MemoryView; extent?: Extent }): JSX.Element {
  const draw = useCallback((width: number) => drawMemory(view, width, extent), [view, extent?.ns, extent?.bytes]);
  return (
    <>
      {name && <h3 class="course-name">{name}</h3>}
      <PlotFigure label={`${name && `${name}: `}${describeMemory(view)}.`} draw={draw} />
      <Legend view={view} />
      {view.course.length > 0 && view.step.length > 0 && (
        <Fold name={`${slug(name)}.steps`} title="Memory at the end of each step">
          <SortableTable caption={`${name} Memory at the end of each step`} columns={stepColumns(view)} rows={[...view.step.keys()]} />
        </Fold>
      )}
    </>
  );
}

/** Rows are places in the columns of steps. */
function stepColumns(view: MemoryView): Column<number>[] {
  return [
    { key: "step", label: "Step", unit: "count", value: (place) => view.step[place] ?? null },
    { key: "all", label: "All", unit: "bytes", value: (place) => view.step_end_bytes[place] ?? null },
    ...view.course.map(({ category, step_end_bytes: held }) => ({
      key: category, label: categoryLabel(category), unit: "bytes", value: (place: number) => held[place] ?? null,
    })),
  ];
}

function Legend({ view }: { view: MemoryView }): JSX.Element {
  const parts: [label: string, color: string][] =
    view.course.length > 0
      ? Object.entries(CATEGORIES)
          .filter(([category]) => view.course.some((course) => course.category === category))
          .map(([, { label, color }]) => [label, color])
      : [["allocated", "var(--accent)"]];
  if (view.reserved_bytes !== null) parts.push(["reserved by the allocator", "var(--cause-communication)"]);
  if (view.phases.length > 0) parts.push(...Object.entries(PHASES).map(([phase, color]): [string, string] => [`above: ${phase}`, color]));
  return (
    <ul class="legend-row">
      {parts.map(([label, color]) => (
        <li key={label}>
          <span class="swatch" style={{ background: color }} aria-hidden="true" /> {label}
        </li>
      ))}
    </ul>
  );
}

function categoryColumns(view: MemoryView): Column<MemoryView["categories"][0]>[] {
  const peak = view.categories.reduce((sum, { bytes }) => sum + bytes, 0);
  return [
    { key: "category", label: "Holds", unit: null, value: ({ category }) => categoryLabel(category) },
    { key: "bytes", label: "Bytes", unit: "bytes", value: ({ bytes }) => bytes },
    { key: "share", label: "Share", unit: "share", value: ({ bytes }) => (peak > 0 ? bytes / peak : null) },
  ];
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
