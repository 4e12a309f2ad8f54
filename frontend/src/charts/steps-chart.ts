// Step times, stacked by cause.
import * as Plot from "@observablehq/plot";
import { causeColor } from "./colors";
import { formatChange, formatDuration, formatPlural, formatTick } from "../format";
import type { StepsView } from "../report";
import { median } from "./median";

/** Wider bars look like slabs. */
const WIDEST_BAR_PX = 72;
const LEFT_PX = 56;

/** More bars would be thinner than a pixel on most screens, so neighbors are averaged. */
const MAX_BARS = 240;

interface Bar {
  label: string;
  /** The first step, as an index into the view's lists. */
  place: number;
  cause: string;
  causeLabel: string;
  durationNs: number;
  totalNs: number;
}

export const stepsPerBar = (view: StepsView): number =>
  Math.max(1, Math.ceil(view.index.length / MAX_BARS));

/** The bars: label, first step, and the step after the last. */
function barsOf(view: StepsView): [label: string, from: number, to: number][] {
  const size = stepsPerBar(view);
  return Array.from({ length: Math.ceil(view.index.length / size) }, (_, bar) => {
    const [from, to] = [bar * size, Math.min((bar + 1) * size, view.index.length)];
    const [first, last] = [view.index[from], view.index[to - 1]];
    return [first === last ? `${first}` : `${first}–${last}`, from, to];
  });
}

export function makeBars(view: StepsView, labels: (cause: string) => string): Bar[] {
  const bars: Bar[] = [];
  for (const [label, from, to] of barsOf(view)) {
    const mean = (values: number[] | undefined): number =>
      (values ?? []).slice(from, to).reduce((sum, value) => sum + value, 0) / (to - from);
    view.causes.forEach((cause, row) => {
      bars.push({
        label,
        place: from,
        cause,
        causeLabel: labels(cause),
        durationNs: mean(view.total_ns[row]),
        totalNs: mean(view.duration_ns),
      });
    });
  }
  return bars;
}

interface Mark {
  label: string;
  totalNs: number;
  title: string;
}

/** A mark above each bar with a slow step, and what took longer in it. */
export function markSlow(view: StepsView): Mark[] {
  return barsOf(view).flatMap(([label, from, to]) => {
    const slow = (view.slow ?? []).filter(({ place }) => from <= place && place < to);
    if (slow.length === 0) return [];
    const totals = view.duration_ns.slice(from, to);
    const totalNs = totals.reduce((sum, ns) => sum + ns, 0) / totals.length;
    const lines = slow.map(
      ({ place, part, excess_ns: ns }) =>
        `Step ${view.index[place]}: ${formatDuration(view.duration_ns[place])}\n${part}: ${formatChange(ns)}`,
    );
    return [{ label, totalNs, title: lines.join("\n") }];
  });
}

export function drawSteps(
  view: StepsView,
  labels: (cause: string) => string,
  width: number,
  chosen: number | null = null,
): Plot.PlotOptions {
  const bars = makeBars(view, labels);
  const names = barsOf(view).map(([label]) => label);
  const every = Math.max(1, Math.ceil((names.length * 34) / Math.max(width - 60, 1)));
  const padding = names.length > 60 ? 0.1 : 0.25;
  const barPx = ((width - LEFT_PX) / names.length) * (1 - padding);
  const inset = Math.max(0, (barPx - WIDEST_BAR_PX) / 2);
  return {
    height: Math.max(220, Math.min(320, width * 0.4)),
    marginLeft: LEFT_PX,
    marginRight: 4,
    marginBottom: 34,
    marginTop: 16,
    x: {
      domain: names,
      ticks: names.filter((_, index) => index % every === 0),
      label: "step",
      labelArrow: "none",
      tickSize: 0,
      padding,
    },
    y: { label: null, tickFormat: (ns: number) => formatTick(ns, "ns"), ticks: 4, nice: 4, grid: true, tickSize: 0 },
    color: { type: "identity" },
    marks: [
      Plot.barY(
        bars,
        Plot.stackY({
          x: "label",
          y: "durationNs",
          fill: (bar: Bar) => causeColor(bar.cause),
          fillOpacity: (bar: Bar) => (chosen === null || chosen === bar.place ? 1 : 0.4),
          insetLeft: inset,
          insetRight: inset,
          title: (bar: Bar) =>
            [
              `Step ${bar.label}: ${formatDuration(bar.totalNs)}`,
              `${bar.causeLabel}: ${formatDuration(bar.durationNs)}`,
            ].join("\n"),
          tip: { format: { x: false, y: false, fill: false, fillOpacity: false }, lineHeight: 1.35 },
        }),
      ),
      Plot.ruleY(names.length > 1 ? [median(view.duration_ns)] : [], {
        stroke: "currentColor",
        strokeDasharray: "4 3",
        pointerEvents: "none",
      }),
      Plot.dot(markSlow(view), {
        x: "label",
        y: "totalNs",
        symbol: "triangle",
        rotate: 180,
        dy: -9,
        r: 4,
        fill: "var(--high)",
        title: "title",
      }),
      Plot.ruleY([0]),
    ],
    opacity: { type: "identity" },
  };
}

export const describeStepsChart = (view: StepsView): string =>
  `Step times stacked by cause, ${formatPlural(view.index.length, "step")}`;
