// Memory over time: allocated, reserved by the allocator, and where steps end.
import * as Plot from "@observablehq/plot";
import { formatBytes, formatDuration, formatTick } from "../format";
import type { MemoryView } from "../report";

/** Memory of a profile or of a snapshot. */
export type MemoryCourse = Pick<
  MemoryView,
  "at_ns" | "allocated_bytes" | "reserved_bytes" | "capacity_bytes" | "step" | "step_end_ns" | "step_end_bytes"
>;

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

export function memoryPoints(view: MemoryCourse): Point[] {
  const from = view.at_ns[0] ?? 0;
  let last = -1;
  return view.at_ns.map((ns, index) => {
    // A step curve needs increasing times: move the second of two simultaneous changes by 1 ns.
    last = Math.max(last + 1, ns - from);
    return { ns: last, bytes: view.allocated_bytes[index] ?? 0, reserved: view.reserved_bytes?.[index] ?? null };
  });
}

/**
 * Five to nine ticks at multiples of a power of two, which are round numbers in bytes. The last one
 * is at the top or beyond.
 */
export function byteTicks(top: number): number[] {
  const step = 2 ** Math.max(0, Math.floor(Math.log2(Math.max(top, 1))) - 2);
  return Array.from({ length: Math.ceil(top / step) + 1 }, (_, index) => index * step);
}

export function drawMemory(view: MemoryCourse, width: number): Plot.PlotOptions {
  const points = memoryPoints(view);
  const top = Math.max(0, ...points.map(({ bytes, reserved }) => Math.max(bytes, reserved ?? 0)));
  const capacity = view.capacity_bytes;
  const isSeen = capacity !== null && capacity <= top * CAPACITY_SEEN;
  const peak = points.reduce((best, point) => (point.bytes > best.bytes ? point : best), points[0] as Point);
  const from = view.at_ns[0] ?? 0;
  const to = points.at(-1)?.ns ?? 0;
  const ends = view.step_end_ns
    .map((ns, index) => ({ ns: ns - from, bytes: view.step_end_bytes[index] ?? 0, step: view.step[index] }))
    .filter(({ ns }) => ns >= 0 && ns <= to);
  const isRight = peak.ns > to / 2;
  const ticks = byteTicks(isSeen && capacity ? capacity : top);
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
      domain: [0, Math.max(1, ticks.at(-1) ?? 0)],
      ticks,
      tickSize: 0,
      tickFormat: (bytes: number) => formatTick(bytes, "bytes"),
    },
    marks: [
      Plot.ruleX(ends.length <= MAX_ENDS ? ends : [], { x: "ns", stroke: "var(--border-strong)", strokeDasharray: "2 3" }),
      Plot.areaY(points, { x: "ns", y: "bytes", curve: "step-after", fill: "var(--accent)", fillOpacity: 0.14 }),
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
            ].join("\n"),
        }),
      ),
    ],
  };
}
