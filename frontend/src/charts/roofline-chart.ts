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

/** Of kernel time: what takes less may lie below the picture, for nobody would change it. */
const WORTH_A_PLACE = 2e-3;
/** The lowest rate is drawn this far below the highest roof, if what takes time is above it. */
const DEPTH = 1e-5;
/** So many of the kernels with most time are named in the picture, if there is room. */
const NAMED = 4;
const WORTH_A_NAME = 0.04;

/** Kernels with most time, unless another name stands close: shares of the picture's sides apart. */
export function namedPoints(points: PlacedPoint[], xs: [number, number], ys: [number, number]): PlacedPoint[] {
  const along = (value: number, [low, high]: [number, number]): number => Math.log(value / low) / Math.log(high / low);
  const named: PlacedPoint[] = [];
  for (const point of [...points].sort((a, b) => b.share - a.share)) {
    if (named.length === NAMED || point.share < WORTH_A_NAME) break;
    const isFree = named.every(
      (other) =>
        Math.abs(along(point.flop_per_byte, xs) - along(other.flop_per_byte, xs)) > 0.2 ||
        Math.abs(along(point.flop_per_s, ys) - along(other.flop_per_s, ys)) > 0.09,
    );
    if (isFree) named.push(point);
  }
  return named;
}

const LARGEST_DOT = 20;
const LONGEST_NAME = 26;
const shortName = ({ operator, name }: PlacedPoint): string => {
  const text = (operator ?? name).replace(/^aten::/, "");
  return text.length > LONGEST_NAME ? `${text.slice(0, LONGEST_NAME - 1)}…` : text;
};

/** The kernels in the picture: all but those that are far below it and take next to no time. */
export function drawnPoints(view: KernelsView): PlacedPoint[] {
  const placed = placedPoints(view);
  const floor = DEPTH * Math.max(0, ...usedRoofs(view).map(({ peak_flop_per_s: peak }) => peak));
  const drawn = placed.filter(({ share, flop_per_s: rate }) => share >= WORTH_A_PLACE || rate >= floor);
  return drawn.length > 0 ? drawn : placed;
}

const describeRoof = ({ format, peak_flop_per_s: peak }: KernelsView["roofs"][number]): string =>
  `${format} ${formatCell(peak, "flop/s")}`;

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
  const points = drawnPoints(view);
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
  // Dots may lie beneath: a rim in the ground's color keeps the letters apart from them.
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
      // Beside the roofs; above the picture where there is no room.
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
      ...(isNarrow ? [] : namedPoints(ordered, xs, ys)).map((point) =>
        Plot.text([point], {
          x: "flop_per_byte",
          y: "flop_per_s",
          text: shortName,
          dy: 10 + LARGEST_DOT * Math.sqrt(point.share / most),
          ...label,
          fill: "currentColor",
        }),
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
