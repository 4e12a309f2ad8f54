// Charts that compare ranks: time by cause, who waits for whom, and the critical rank of each step.
import * as Plot from "@observablehq/plot";
import { formatChange, formatDuration, formatPlural } from "../format";
import type { RanksView } from "../report";
import { median } from "./median";

const ROW_PX = 22;
/** The least distance between the names of ranks. */
const LABEL_PX = 30;
const LEFT_PX = 172;
/** The least width of a cell that shows its number. */
const NUMBER_PX = 58;
/** Colors that are paler than this share of the strongest one get no number. */
const FAINT = 0.04;
/** Colors that are stronger have a text color of their own. */
const STRONG = 0.5;
/** Below this width, the names of causes are on lines of their own, above the cells. */
const NARROW_PX = 560;

export interface HeatCell {
  x: number;
  y: string;
  ns: number;
  title: string;
}

/** One cell per rank and cause: its time, or the difference from the median rank. */
export function heatCells(
  view: RanksView,
  names: string[],
  labels: (cause: string) => string,
  isDifference: boolean,
  rows: number[] = [...view.causes.keys()],
): HeatCell[] {
  return rows.flatMap((row) => {
    const cause = view.causes[row] ?? "";
    const times = view.total_ns[row] ?? [];
    const middle = median(times);
    const label = labels(cause);
    return times.map((ns, x) => ({
      x,
      y: label,
      ns: isDifference ? ns - middle : ns,
      title: [
        `${names[x]}: ${label}`,
        formatDuration(ns),
        `${formatChange(ns - middle)} vs. median rank`,
      ].join("\n"),
    }));
  });
}

/** The time that the strongest color of a heat map stands for. */
export const strongest = (cells: HeatCell[], leastNs = 1): number =>
  Math.max(leastNs, ...cells.map(({ ns }) => Math.abs(ns)));

/** A heat map with ranks from left to right; colors fade from `fullNs` down to zero. */
export function drawHeat(
  cells: HeatCell[],
  rows: string[],
  ranks: number[],
  names: string[],
  width: number,
  isDifference: boolean,
  fullNs: number,
): Plot.PlotOptions {
  const isNarrow = width < NARROW_PX;
  const left = isNarrow ? 0 : LEFT_PX;
  const every = Math.max(1, Math.ceil((ranks.length * LABEL_PX) / Math.max(width - left, 1)));
  const ticks = ranks.filter((_, index) => index % every === 0);
  const hasNumbers = (width - left) / Math.max(ranks.length, 1) >= NUMBER_PX;
  const strength = ({ ns }: HeatCell): number => Math.abs(ns) / fullNs;
  return {
    height: rows.length * (isNarrow ? ROW_PX + 20 : ROW_PX) + 40,
    marginTop: isNarrow ? 10 : 4,
    marginBottom: 36,
    marginLeft: left,
    marginRight: 0,
    x: {
      type: "band",
      domain: ranks,
      ticks,
      tickFormat: (x: number) => shortName(names[x] ?? ""),
      tickSize: 0,
      label: "rank",
      labelArrow: "none",
      labelAnchor: "center",
      padding: ranks.length > 48 ? 0 : 0.06,
    },
    y: {
      type: "band",
      domain: rows,
      label: null,
      tickSize: 0,
      padding: isNarrow ? 0.52 : 0.1,
      axis: isNarrow ? null : "left",
    },
    color: { type: "identity" },
    opacity: { type: "identity" },
    marks: [
      Plot.cell(cells, { x: "x", y: "y", fill: "var(--heat-ground)" }),
      Plot.cell(cells, {
        x: "x",
        y: "y",
        fill: (cell: HeatCell) =>
          isDifference && cell.ns < 0 ? "var(--heat-less)" : "var(--heat-more)",
        fillOpacity: strength,
      }),
      Plot.text(hasNumbers ? cells.filter((cell) => strength(cell) >= FAINT) : [], {
        x: "x",
        y: "y",
        text: ({ ns }: HeatCell) => (isDifference ? formatChange(ns) : formatDuration(ns)),
        fill: (cell: HeatCell) => (strength(cell) > STRONG ? "var(--on-heat)" : "var(--text)"),
        pointerEvents: "none",
      }),
      Plot.text(isNarrow ? rows : [], {
        y: (row: string) => row,
        text: (row: string) => row,
        dy: -18,
        textAnchor: "start",
        frameAnchor: "left",
        fill: "var(--text-muted)",
      }),
      Plot.tip(
        cells,
        Plot.pointer({ x: "x", y: "y", title: "title", maxRadius: 60, lineHeight: 1.35 }),
      ),
    ],
  };
}

/** One cell per step and rank: how long the rank waits for others. */
export function stepCells(view: RanksView, names: string[]): HeatCell[] {
  return (view.step_waiting_ns ?? []).flatMap((waits, row) =>
    waits.flatMap((ns, x) => {
      const step = view.step_index[row] ?? row;
      if (ns === null) return [];
      const isLast = view.critical[row] === x ? "\nthe last one" : "";
      return [{ x, y: `step ${step}`, ns, title: `${names[x]} waits ${formatDuration(ns)}\nin step ${step}${isLast}` }];
    }),
  );
}

/** `7` for `rank 7`, as the axis is labeled "rank". */
const shortName = (name: string): string => name.replace(/^rank /, "");

/** The critical rank of each step. */
export function drawCritical(view: RanksView, names: string[]): Plot.PlotOptions {
  const points = view.step_index.map((step, index) => ({ step, worker: view.critical[index] ?? 0 }));
  const count = view.step_ns.length;
  return {
    height: Math.min(220, 70 + count * 12),
    marginLeft: 56,
    marginRight: 12,
    marginTop: 12,
    marginBottom: 36,
    x: {
      label: "step",
      labelArrow: "none",
      labelAnchor: "center",
      tickSize: 0,
      tickFormat: (x: number) => (Number.isInteger(x) ? `${x}` : ""),
      ticks: Math.min(points.length, 10),
      inset: 8,
    },
    y: {
      domain: [-0.5, count - 0.5],
      reverse: true,
      label: null,
      grid: true,
      tickSize: 0,
      ticks: count <= 8 ? [...names.keys()] : 6,
      tickFormat: (y: number) => (Number.isInteger(y) ? (names[y] ?? "") : ""),
    },
    marks: [
      Plot.dot(points, {
        x: "step",
        y: "worker",
        r: points.length > 100 ? 2.5 : 5,
        fill: "var(--accent)",
        title: ({ step, worker }: { step: number; worker: number }) => `step ${step}: ${names[worker]}`,
        tip: { format: { x: false, y: false } },
      }),
    ],
  };
}

export const describeHeat = (view: RanksView): string =>
  `Time of ${formatPlural(view.step_ns.length, "rank")} by cause; the table below has the ranks' numbers.`;
