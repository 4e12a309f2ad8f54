// Kernels under the device's roofs: work per byte from left to right, rate upwards.
import * as Plot from "@observablehq/plot";
import { formatCell, formatDuration, formatShare, formatTick } from "../format";
import type { KernelPoint, KernelsView } from "../report";

const BOUNDS: Record<string, [color: string, label: string]> = {
  compute: ["var(--cause-compute-32)", "bound by compute"],
  memory: ["var(--cause-copies)", "bound by memory"],
  latency: ["var(--cause-synchronization)", "too small to fill the device"],
};
const UNKNOWN: [color: string, label: string] = ["var(--cause-unexplained)", "bound unknown"];

export const boundOf = (bound: string | null): [color: string, label: string] =>
  BOUNDS[bound ?? ""] ?? UNKNOWN;

export type PlacedPoint = KernelPoint & { flop_per_byte: number; flop_per_s: number };

/** The kernels that have a place on the chart; a logarithm has none for no work. */
export const placedPoints = ({ points }: KernelsView): PlacedPoint[] =>
  points.filter((point): point is PlacedPoint => (point.flop_per_byte ?? 0) > 0 && (point.flop_per_s ?? 0) > 0);

/** The roofs of the formats that the kernels compute with, the highest first. */
export function usedRoofs(view: KernelsView): KernelsView["roofs"] {
  const used = new Set(placedPoints(view).map(({ format }) => format));
  const roofs = view.roofs.filter(({ format }) => used.has(format));
  return roofs.sort((a, b) => b.peak_flop_per_s - a.peak_flop_per_s);
}

const powerBelow = (value: number): number => 10 ** Math.floor(Math.log10(value));
const powerAbove = (value: number): number => 10 ** Math.ceil(Math.log10(value));

/** Powers of ten from end to end, so many at most: between them lines would only fill the picture. */
function powersWithin([low, high]: [number, number], most: number): number[] {
  const [first, last] = [Math.round(Math.log10(low)), Math.round(Math.log10(high))];
  const every = Math.max(1, Math.ceil((last - first + 1) / Math.max(most, 2)));
  const count = Math.floor((last - first) / every) + 1;
  return Array.from({ length: count }, (_, place) => 10 ** (first + place * every));
}

export function drawRoofline(view: KernelsView, width: number): Plot.PlotOptions {
  const points = placedPoints(view);
  const roofs = usedRoofs(view);
  const bandwidth = view.peak_bytes_per_s;
  const intensities = points.map(({ flop_per_byte: x }) => x);
  const rates = points.map(({ flop_per_s: y }) => y);
  // The ridges belong into the picture: left of them memory bounds, right of them compute.
  const ridges = bandwidth ? roofs.map(({ peak_flop_per_s: peak }) => peak / bandwidth) : [];
  const xs: [number, number] = [
    powerBelow(Math.min(...intensities, ...ridges)),
    powerAbove(Math.max(...intensities, ...ridges) * 1.5),
  ];
  const ys: [number, number] = [
    powerBelow(Math.min(...rates)),
    powerAbove(Math.max(...rates, ...roofs.map(({ peak_flop_per_s: peak }) => peak))),
  ];
  const roofLines = roofs.flatMap(({ format, peak_flop_per_s: peak }) => {
    const from = bandwidth ? peak / bandwidth : xs[0];
    return [
      { format, x: from, y: peak },
      { format, x: xs[1], y: peak },
    ];
  });
  const highest = Math.max(0, ...roofs.map(({ peak_flop_per_s: peak }) => peak));
  // The slope is drawn from where it enters the picture.
  const enters = bandwidth ? Math.max(xs[0], ys[0] / bandwidth) : 0;
  const slope =
    bandwidth && highest
      ? [
          { x: enters, y: enters * bandwidth },
          { x: highest / bandwidth, y: highest },
        ]
      : [];
  const middleX = Math.sqrt((slope[0]?.x ?? 1) * (slope[1]?.x ?? 1));
  const middle = { x: middleX, y: middleX * (bandwidth ?? 0) };
  const most = Math.max(...points.map(({ share }) => share));
  const ordered = [...points].sort((a, b) => b.share - a.share);
  // Dots may lie beneath: a rim in the ground's colour keeps the letters apart from them.
  const label = { fill: "var(--text-muted)", fontSize: 10.5, stroke: "var(--surface)", strokeWidth: 4 };
  return {
    height: Math.max(300, Math.min(440, width * 0.62)),
    marginLeft: 72,
    marginRight: 16,
    marginTop: 22,
    marginBottom: 40,
    x: {
      type: "log",
      domain: xs,
      label: "flop per byte of memory traffic",
      labelAnchor: "center",
      labelArrow: "none",
      tickSize: 0,
      ticks: powersWithin(xs, Math.floor(width / 90)),
      tickFormat: (x: number) => x.toLocaleString("en-US"),
      grid: true,
    },
    y: {
      type: "log",
      domain: ys,
      label: null,
      tickSize: 0,
      ticks: powersWithin(ys, 6),
      tickFormat: (y: number) => formatTick(y, "flop/s"),
      grid: true,
    },
    r: { type: "sqrt", domain: [0, most], range: [2.5, width < 560 ? 13 : 20] },
    color: { type: "identity" },
    marks: [
      Plot.line(slope, { x: "x", y: "y", stroke: "var(--text-muted)", strokeWidth: 1.5 }),
      Plot.line(roofLines, { x: "x", y: "y", z: "format", stroke: "var(--text-muted)", strokeWidth: 1.5 }),
      Plot.dot(ordered, {
        x: "flop_per_byte",
        y: "flop_per_s",
        r: "share",
        fill: ({ bound }: PlacedPoint) => boundOf(bound)[0],
        fillOpacity: 0.55,
        stroke: ({ bound }: PlacedPoint) => boundOf(bound)[0],
        strokeWidth: 1,
      }),
      Plot.text(
        roofLines.filter(({ x }) => x === xs[1]),
        { x: "x", y: "y", text: ({ format, y }: { format: string; y: number }) => `${format} ${formatCell(y, "flop/s")}`, textAnchor: "end", dy: -7, ...label },
      ),
      // Along the slope's middle, where few kernels are, and above it, where none can be.
      Plot.text(slope.length ? [middle] : [], {
        x: "x",
        y: "y",
        text: () => `memory ${formatCell(bandwidth, "bytes/s")}`,
        textAnchor: "end",
        dx: -8,
        dy: -6,
        ...label,
      }),
      Plot.tip(
        ordered,
        Plot.pointer({
          x: "flop_per_byte",
          y: "flop_per_s",
          maxRadius: 40,
          lineWidth: 34,
          lineHeight: 1.35,
          title: (point: PlacedPoint) =>
            [
              point.name,
              ...(point.operator ? [point.operator] : []),
              `${formatShare(point.share)} of kernel time, ${formatDuration(point.total_ns / point.count)} each`,
              `${formatCell(point.flop_per_s, "flop/s")}, ${formatCell(point.bytes_per_s, "bytes/s")}`,
              ...(point.achieved_share === null ? [] : [`${formatShare(point.achieved_share)} of what is achievable`]),
              boundOf(point.bound)[1],
            ].join("\n"),
        }),
      ),
    ],
  };
}
