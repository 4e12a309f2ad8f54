// Memory over time: allocated, reserved by the allocator, and where steps end.
import * as Plot from "@observablehq/plot";
import { formatBytes, formatDuration, formatTick } from "../format";
import type { MemoryView } from "../report";

/** Memory of a profile or of a snapshot. */
export type Course = Pick<
  MemoryView,
  | "at_ns" | "allocated_bytes" | "reserved_bytes" | "capacity_bytes" | "peak_at_ns" | "step" | "step_end_ns" | "step_end_bytes"
  | "categories" | "course" | "phases"
>;
/** What memory is for, from the bottom up: what stays comes first. */
export const CATEGORIES: Record<string, { label: string; color: string }> = {
  parameters: { label: "parameters", color: "var(--cause-compute-64)" },
  earlier: { label: "other memory from before the recording", color: "var(--cause-queued)" },
  "optimizer-state": { label: "optimizer state", color: "var(--cause-copies)" },
  gradients: { label: "gradients", color: "var(--cause-compiling)" },
  activations: { label: "activations", color: "var(--cause-compute-16)" },
  input: { label: "input", color: "var(--cause-input)" },
  temporary: { label: "temporary", color: "var(--cause-launching)" },
  unknown: { label: "unknown", color: "var(--cause-unexplained)" },
};

/** The parts of steps, marked above the curve. */
export const PHASES: Record<string, string> = {
  forward: "var(--cause-compute-16)", backward: "var(--cause-communication)", optimizer: "var(--cause-copies)",
};
/** The band of phases, above everything else. */
const [BAND_BOTTOM, BAND_TOP] = [1.035, 1.055];

/** A capacity that is a larger multiple of the peak is not drawn, as it would flatten the curve. */
const CAPACITY_SEEN = 2.5;
/** With more steps, the lines at their ends would fill the chart. */
const MAX_ENDS = 60;

interface Point {
  /** Since the first change. */
  ns: number;
  bytes: number;
  reserved: number | null;
}

export function memoryPoints(view: Course): Point[] {
  const from = view.at_ns[0] ?? 0;
  let last = -1;
  return view.at_ns.map((ns, index) => {
    // A step curve needs increasing times: move the second of two simultaneous changes by 1 ns.
    last = Math.max(last + 1, ns - from);
    return { ns: last, bytes: view.allocated_bytes[index] ?? 0, reserved: view.reserved_bytes?.[index] ?? null };
  });
}

/** The place of the peak among the points. */
export const peakOf = (view: Course): number =>
  view.allocated_bytes.reduce((best, bytes, at) => (bytes > (view.allocated_bytes[best] ?? 0) ? at : best), 0);

/** How long the recording of a course is, and how high its axis reaches. */
export interface Extent {
  ns: number;
  bytes: number;
}

export function extentOf(view: Course): Extent {
  const points = memoryPoints(view);
  const top = Math.max(0, ...points.map(({ bytes, reserved }) => Math.max(bytes, reserved ?? 0)));
  const capacity = view.capacity_bytes;
  return { ns: points.at(-1)?.ns ?? 0, bytes: capacity !== null && capacity <= top * CAPACITY_SEEN ? Math.max(capacity, top) : top };
}

interface CategoryPoint {
  ns: number;
  bytes: number;
  category: string;
}

/** The points of all categories, for a stack. */
function categoryPoints(view: Course, points: Point[]): CategoryPoint[] {
  return view.course.flatMap(({ category, bytes }) =>
    points.map(({ ns }, at) => ({ ns, bytes: bytes[at] ?? 0, category })),
  );
}

/** The parts of steps from one beginning to the next, since the first change. */
export function phaseStretches({ phases, at_ns }: Course, toNs: number): { from: number; to: number; phase: string }[] {
  const fromNs = at_ns[0] ?? 0;
  return phases
    .map(({ at_ns: ns, phase }, at) => ({
      from: Math.max(ns - fromNs, 0),
      to: Math.min((phases[at + 1]?.at_ns ?? Infinity) - fromNs, toNs),
      phase,
    }))
    .filter(({ from, to }) => from < to);
}

/**
 * Five to nine ticks at multiples of a power of two, which are round numbers in bytes. The last one
 * is at the top or beyond.
 */
export function byteTicks(top: number): number[] {
  const step = 2 ** Math.max(0, Math.floor(Math.log2(Math.max(top, 1))) - 2);
  return Array.from({ length: Math.ceil(top / step) + 1 }, (_, index) => index * step);
}

/** `extent` is that of the axes, of two courses one above the other. */
export function drawMemory(view: Course, width: number, extent: Extent = extentOf(view)): Plot.PlotOptions {
  const points = memoryPoints(view);
  const capacity = view.capacity_bytes;
  const isSeen = capacity !== null && capacity <= extent.bytes;
  const peak = points[peakOf(view)] as Point;
  const from = view.at_ns[0] ?? 0;
  const to = extent.ns;
  const stacked = categoryPoints(view, points);
  const phases = phaseStretches(view, points.at(-1)?.ns ?? 0);
  const ends = view.step_end_ns
    .map((ns, index) => ({ ns: ns - from, bytes: view.step_end_bytes[index] ?? 0, step: view.step[index] }))
    .filter(({ ns }) => ns >= 0 && ns <= to);
  const isRight = peak.ns > to / 2;
  const ticks = byteTicks(extent.bytes);
  const highest = Math.max(1, ticks.at(-1) ?? 0);
  return {
    height: 280,
    marginLeft: 68,
    marginRight: 14,
    marginTop: 20,
    marginBottom: 38,
    x: {
      domain: [0, to],
      tickFormat: (ns: number) => formatTick(ns, "ns"),
      ticks: Math.max(2, Math.floor(width / 130)),
      tickSize: 0,
      label: "time",
      labelAnchor: "center",
      labelArrow: "none",
    },
    y: {
      label: null,
      grid: true,
      domain: [0, phases.length > 0 ? highest * BAND_TOP : highest],
      ticks,
      tickSize: 0,
      tickFormat: (bytes: number) => formatTick(bytes, "bytes"),
    },
    marks: [
      Plot.ruleX(ends.length <= MAX_ENDS ? ends : [], { x: "ns", stroke: "var(--border-strong)", strokeDasharray: "2 3" }),
      Plot.rect(phases.length <= 3 * MAX_ENDS ? phases : [], {
        x1: "from",
        x2: "to",
        y1: highest * BAND_BOTTOM,
        y2: highest * BAND_TOP,
        fill: ({ phase }: { phase: string }) => PHASES[phase] ?? "none",
      }),
      stacked.length > 0
        ? Plot.areaY(stacked, {
            x: "ns",
            y: "bytes",
            curve: "step-after",
            z: "category",
            order: Object.keys(CATEGORIES),
            fill: ({ category }: CategoryPoint) => CATEGORIES[category]?.color ?? "none",
            fillOpacity: 0.75,
          })
        : Plot.areaY(points, { x: "ns", y: "bytes", curve: "step-after", fill: "var(--accent)", fillOpacity: 0.14 }),
      Plot.lineY(points, { x: "ns", y: "bytes", curve: "step-after", stroke: "var(--accent)", strokeWidth: 1.5 }),
      Plot.lineY(view.reserved_bytes ? points : [], {
        x: "ns",
        y: "reserved",
        curve: "step-after",
        stroke: "var(--cause-communication)",
        strokeWidth: 1.5,
      }),
      Plot.ruleY(isSeen ? [capacity] : [], { stroke: "var(--high)", strokeDasharray: "5 3" }),
      Plot.dot([peak], { x: "ns", y: "bytes", r: 4, fill: "var(--accent)", stroke: "var(--surface)" }),
      Plot.text([peak], {
        x: "ns",
        y: "bytes",
        text: () => `peak ${formatBytes(peak.bytes)}`,
        textAnchor: isRight ? "end" : "start",
        dx: isRight ? -8 : 8,
        dy: -9,
        fill: "currentColor",
        stroke: "var(--surface)",
        strokeWidth: 4,
      }),
      Plot.tip(
        points,
        Plot.pointerX({
          x: "ns",
          y: "bytes",
          lineHeight: 1.35,
          title: ({ ns, bytes, reserved }: Point) =>
            [
              `at ${formatDuration(ns)}`,
              `${formatBytes(bytes)} allocated`,
              ...(reserved === null ? [] : [`${formatBytes(reserved)} reserved`]),
              ...stacked
                .filter((point) => point.ns === ns && point.bytes > 0)
                .map(({ category, bytes: held }) => `${formatBytes(held)} ${CATEGORIES[category]?.label ?? category}`),
            ].join("\n"),
        }),
      ),
    ],
  };
}
