// Roofline chart: work per byte from left to right, achieved rate upwards.
import * as Plot from "@observablehq/plot";
import { formatCell, formatDuration, formatShare, formatTick } from "../format";
import type { KernelPoint, KernelsView } from "../report";

const BOUNDS: Record<string, [color: string, label: string]> = {
  compute: ["var(--cause-compute-32)", "compute bound"],
  memory: ["var(--cause-copies)", "memory bound"],
  latency: ["var(--cause-synchronization)", "too small to fill the device"],
};
const UNKNOWN: [color: string, label: string] = ["var(--cause-unexplained)", "unknown"];

export const boundOf = (bound: string | null): [color: string, label: string] =>
  BOUNDS[bound ?? ""] ?? UNKNOWN;

export type PlacedPoint = KernelPoint & { flop_per_byte: number; flop_per_s: number };

/** The kernels that a logarithmic chart can show: those with known work. */
export const placedPoints = ({ points }: KernelsView): PlacedPoint[] =>
  points.filter((point): point is PlacedPoint => (point.flop_per_byte ?? 0) > 0 && (point.flop_per_s ?? 0) > 0);

/** The roofs of the number formats that the kernels use, highest first. */
export function usedRoofs(view: KernelsView): KernelsView["roofs"] {
  const used = new Set(placedPoints(view).map(({ format }) => format));
  const roofs = view.roofs.filter(({ format }) => used.has(format));
  return roofs.sort((a, b) => b.peak_flop_per_s - a.peak_flop_per_s);
}

/** Kernels with a smaller share of kernel time may be left out: optimizing them gains nothing. */
const LEAST_SHARE = 2e-3;
/** Kernels that small are left out if their rate is below this part of the highest roof. */
const LEAST_RATE = 1e-5;
/** At most this many kernels have labels in the chart, if there is room. */
const MAX_LABELS = 4;
const LEAST_LABELED_SHARE = 0.04;

/** The kernels to label: those with the most time, unless another label is close by. */
export function labeledPoints(points: PlacedPoint[], xs: [number, number], ys: [number, number]): PlacedPoint[] {
  // The position along an axis, from 0 to 1.
  const along = (value: number, [low, high]: [number, number]): number => Math.log(value / low) / Math.log(high / low);
  const labeled: PlacedPoint[] = [];
  for (const point of [...points].sort((a, b) => b.share - a.share)) {
    if (labeled.length === MAX_LABELS || point.share < LEAST_LABELED_SHARE) break;
    const isFree = labeled.every(
      (other) =>
        Math.abs(along(point.flop_per_byte, xs) - along(other.flop_per_byte, xs)) > 0.2 ||
        Math.abs(along(point.flop_per_s, ys) - along(other.flop_per_s, ys)) > 0.09,
    );
    if (isFree) labeled.push(point);
  }
  return labeled;
}

const LARGEST_DOT = 20;
const LONGEST_NAME = 26;
const shortName = ({ operator, name }: PlacedPoint): string => {
  const text = (operator ?? name).replace(/^aten::/, "");
  return text.length > LONGEST_NAME ? `${text.slice(0, LONGEST_NAME - 1)}…` : text;
};

/** The kernels in the chart: all but slow ones with next to no time. */
export function drawnPoints(view: KernelsView): PlacedPoint[] {
  const placed = placedPoints(view);
  const leastRate = LEAST_RATE * Math.max(0, ...usedRoofs(view).map(({ peak_flop_per_s: peak }) => peak));
  const drawn = placed.filter(({ share, flop_per_s: rate }) => share >= LEAST_SHARE || rate >= leastRate);
  return drawn.length > 0 ? drawn : placed;
}

const describeRoof = ({ format, peak_flop_per_s: peak }: KernelsView["roofs"][number]): string =>
  `${format} ${formatCell(peak, "flop/s")}`;

const powerBelow = (value: number): number => 10 ** Math.floor(Math.log10(value));
const powerAbove = (value: number): number => 10 ** Math.ceil(Math.log10(value));

/** At most `most` powers of ten, evenly spread over the axis. */
function powersWithin([low, high]: [number, number], most: number): number[] {
  const [first, last] = [Math.round(Math.log10(low)), Math.round(Math.log10(high))];
  const every = Math.max(1, Math.ceil((last - first + 1) / Math.max(most, 2)));
  const count = Math.floor((last - first) / every) + 1;
  return Array.from({ length: count }, (_, place) => 10 ** (first + place * every));
}

export function drawRoofline(view: KernelsView, width: number): Plot.PlotOptions {
  const points = drawnPoints(view);
  const roofs = usedRoofs(view);
  const bandwidth = view.peak_bytes_per_s;
  const intensities = points.map(({ flop_per_byte: x }) => x);
  const rates = points.map(({ flop_per_s: y }) => y);
  // Show the ridges: left of them kernels are memory bound, right of them compute bound.
  const ridges = bandwidth ? roofs.map(({ peak_flop_per_s: peak }) => peak / bandwidth) : [];
  const xs: [number, number] = [
    powerBelow(Math.min(...intensities, ...ridges)),
    powerAbove(Math.max(...intensities, ...ridges) * 1.5),
  ];
  const peaks = roofs.map(({ peak_flop_per_s: peak }) => peak);
  // Without a known peak, the bandwidth still limits kernels, up to the right edge.
  const highest = peaks.length > 0 ? Math.max(...peaks) : (bandwidth ?? 0) * xs[1];
  const ys: [number, number] = [powerBelow(Math.min(...rates)), powerAbove(Math.max(...rates, highest))];
  const roofLines = roofs.flatMap(({ format, peak_flop_per_s: peak }) => {
    const from = bandwidth ? peak / bandwidth : xs[0];
    return [
      { format, x: from, y: peak },
      { format, x: xs[1], y: peak },
    ];
  });
  // Draw the slope from where it enters the chart.
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
  // Labels may overlap dots, so outline them in the background color.
  const label = { fill: "var(--text-muted)", fontSize: 10.5, stroke: "var(--surface)", strokeWidth: 4 };
  const isNarrow = width < 560;
  return {
    height: Math.max(300, Math.min(440, width * 0.62)),
    marginLeft: 72,
    marginRight: isNarrow ? 16 : 118,
    marginTop: 22,
    marginBottom: 40,
    x: {
      type: "log",
      domain: xs,
      label: "FLOP per byte of memory traffic",
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
    r: { type: "sqrt", domain: [0, most], range: [2.5, isNarrow ? 13 : LARGEST_DOT] },
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
      // Roof labels: to the right of the chart, or above it if narrow.
      Plot.text(isNarrow ? [] : roofs, {
        x: xs[1],
        y: "peak_flop_per_s",
        text: describeRoof,
        textAnchor: "start",
        dx: 8,
        ...label,
      }),
      Plot.text(isNarrow && roofs.length > 0 ? [roofs.map(describeRoof).join(", ")] : [], {
        text: (text: string) => text,
        frameAnchor: "top-right",
        dy: -16,
        ...label,
      }),
      ...(isNarrow ? [] : labeledPoints(ordered, xs, ys)).map((point) =>
        Plot.text([point], {
          x: "flop_per_byte",
          y: "flop_per_s",
          text: shortName,
          dy: 10 + LARGEST_DOT * Math.sqrt(point.share / most),
          ...label,
          fill: "currentColor",
        }),
      ),
      // Label the slope in its middle, above it, where no kernel can be.
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
              ...(point.achieved_share === null ? [] : [`${formatShare(point.achieved_share)} of the achievable rate`]),
              boundOf(point.bound)[1],
            ].join("\n"),
        }),
      ),
    ],
  };
}
