// Memory over time by what it is for, of a profile or a snapshot, and below it that of another run.
import type { JSX } from "preact";
import { useCallback } from "preact/hooks";
import { CATEGORIES, type Course, type Extent, PHASES, drawMemory, extentOf, peakOf, phaseStretches } from "../charts/memory-chart";
import { PlotFigure } from "../charts/plot-figure";
import { formatBytes, formatDuration, formatShare } from "../format";
import { fetchView } from "../state/api";
import { captureName } from "../state/capture-name";
import { isExported } from "../state/exported";
import { slug, useLinked } from "../state/linked";
import { captures } from "../state/store";
import { Fetched } from "../widgets/fetched";
import { Fold } from "../widgets/fold";
import { type Column, SortableTable } from "../widgets/sortable-table";

interface Props {
  view: Course;
  captureId: string;
  /** What a screen reader says of the chart. */
  label: string;
  /** What holds most at the peak; "" if unknown. */
  holder: string;
  /** What follows from the categories. */
  note?: string | null;
  isSnapshot?: boolean;
}

export function MemoryCourse({ view, captureId, label, holder, note, isSnapshot = false }: Props): JSX.Element {
  const id = isSnapshot ? "snapshot-" : "";
  return (
    <>
      <section class="card" aria-labelledby={`${id}course`}>
        <div class="card-head">
          <h2 id={`${id}course`}>{isSnapshot ? "Memory over the history" : "Memory over time"}</h2>
          {view.step.length > 0 && <p class="muted">dotted lines: ends of steps</p>}
        </div>
        {view.at_ns.length > 1 ? (
          <>
            <Courses view={view} captureId={captureId} label={label} isSnapshot={isSnapshot} />
            <p class="muted table-note">{explainPeak(view, holder)}</p>
          </>
        ) : (
          <p class="muted">The snapshot has no history with times, only what was allocated when it was taken.</p>
        )}
      </section>
      {view.categories.length > 0 && (
        <section aria-labelledby={`${id}categories`}>
          <div class="section-head">
            <h2 id={`${id}categories`}>What the peak holds</h2>
          </div>
          <SortableTable caption="What the peak holds" columns={categoryColumns(view)} rows={view.categories} />
          <p class="muted table-note">
            By {isSnapshot && "the stack and "}the life of each allocation: <em>activations</em> live from the forward to the backward
            pass, <em>gradients</em> from the backward pass to the optimizer.{" "}
            {isSnapshot
              ? "Parameters are what builds, loads or moves a model; of earlier memory, as much as there are gradients."
              : "Trained parameters are as large as their gradients."}
            {note && ` ${note}`}
          </p>
        </section>
      )}
    </>
  );
}

/** When the peak is, and what it mostly holds. */
export function explainPeak(view: Course, holder: string): string {
  const peakNs = view.peak_at_ns - (view.at_ns[0] ?? 0);
  const phase = phaseStretches(view, Infinity).find(({ from, to }) => from <= peakNs && peakNs < to)?.phase;
  const place = view.step_end_ns.findIndex((endNs) => view.peak_at_ns <= endNs);
  const step = place < 0 ? "" : ` of step ${view.step[place]}`;
  const where = phase ? `in the ${phase} pass${step}` : step && `before the end${step}`;
  const held = view.categories.reduce((sum, { bytes }) => sum + bytes, 0);
  const largest = view.categories.slice(0, 3).map(({ category, bytes }) => `${formatShare(bytes / held)} ${categoryLabel(category)}`);
  const parts = [
    `The peak is ${[`${formatDuration(peakNs)} after the first change`, where].filter(Boolean).join(", ")}.`,
    largest.length > 0 && `It holds ${largest.join(", ")}.`,
    holder,
  ];
  return parts.filter(Boolean).join(" ");
}

const categoryLabel = (category: string): string => CATEGORIES[category]?.label ?? category;

/** The course of this run, and below it that of another one on the same axes. */
function Courses({ view, captureId, label, isSnapshot }: Pick<Props, "view" | "captureId" | "label"> & { isSnapshot: boolean }): JSX.Element {
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
        <Fetched of={chosen.id} fetch={(signal) => fetchCourse(chosen.id, isSnapshot, signal)}>
          {(below) => {
            if (!below || below.at_ns.length < 2) {
              return (
                <>
                  <CourseFigure label={label} view={view} />
                  <p class="muted">{captureName(chosen.id, known)} has no changes of memory.</p>
                </>
              );
            }
            const [a, b] = [extentOf(view), extentOf(below)];
            const extent = { ns: Math.max(a.ns, b.ns), bytes: Math.max(a.bytes, b.bytes) };
            return (
              <>
                <CourseFigure name={captureName(captureId, known)} label={label} view={view} extent={extent} />
                <CourseFigure name={captureName(chosen.id, known)} view={below} extent={extent} />
              </>
            );
          }}
        </Fetched>
      ) : (
        <CourseFigure label={label} view={view} />
      )}
    </>
  );
}

/** The memory of another run: of the same kind, if it has both. */
async function fetchCourse(id: string, isSnapshot: boolean, signal: AbortSignal): Promise<Course | null> {
  const [profile, snapshot] = await Promise.all([fetchView(id, "memory", signal), fetchView(id, "snapshot", signal)]);
  return isSnapshot ? (snapshot ?? profile) : (profile ?? snapshot);
}

function CourseFigure({ name = "", label = "", view, extent }: { name?: string; label?: string; view: Course; extent?: Extent }): JSX.Element {
  const draw = useCallback((width: number) => drawMemory(view, width, extent), [view, extent?.ns, extent?.bytes]);
  return (
    <>
      {name && <h3 class="course-name">{name}</h3>}
      <PlotFigure label={`${name && `${name}: `}${label || `peak memory: ${formatBytes(view.allocated_bytes[peakOf(view)] ?? 0)}`}.`} draw={draw} />
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
function stepColumns(view: Course): Column<number>[] {
  return [
    { key: "step", label: "Step", unit: "count", value: (place) => view.step[place] ?? null },
    { key: "all", label: "All", unit: "bytes", value: (place) => view.step_end_bytes[place] ?? null },
    ...view.course.map(({ category, step_end_bytes: held }) => ({
      key: category, label: categoryLabel(category), unit: "bytes", value: (place: number) => held[place] ?? null,
    })),
  ];
}

function Legend({ view }: { view: Course }): JSX.Element {
  const parts: [label: string, color: string][] =
    view.course.length > 0
      ? Object.entries(CATEGORIES)
          .filter(([category]) => view.course.some((course) => course.category === category))
          .map(([, { label, color }]) => [label, color])
      : [["allocated", "var(--accent)"]];
  if (view.reserved_bytes !== null) parts.push(["reserved by the allocator", "var(--cause-communication)"]);
  const phases = new Set(view.phases.map(({ phase }) => phase));
  parts.push(...[...phases].map((phase): [string, string] => [`above: ${phase}`, PHASES[phase] ?? "none"]));
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

function categoryColumns(view: Course): Column<Course["categories"][0]>[] {
  const peak = view.categories.reduce((sum, { bytes }) => sum + bytes, 0);
  return [
    { key: "category", label: "Holds", unit: null, value: ({ category }) => categoryLabel(category) },
    { key: "bytes", label: "Bytes", unit: "bytes", value: ({ bytes }) => bytes },
    { key: "share", label: "Share", unit: "share", value: ({ bytes }) => (peak > 0 ? bytes / peak : null) },
  ];
}
