// Step times, stacked by cause.
import * as Plot from "@observablehq/plot";
import { causeColor } from "../causes";
import { formatDuration, formatPlural, formatTick } from "../format";
import type { StepsView } from "../report";

/** More bars than this are thinner than a pixel on most screens: neighbours are averaged. */
const MAX_BARS = 240;

interface Bar {
  label: string;
  cause: string;
  causeLabel: string;
  durationNs: number;
  totalNs: number;
}

export const stepsPerBar = (view: StepsView): number =>
  Math.max(1, Math.ceil(view.index.length / MAX_BARS));

export function makeBars(view: StepsView, labels: Map<string, string>): Bar[] {
  const size = stepsPerBar(view);
  const bars: Bar[] = [];
  for (let from = 0; from < view.index.length; from += size) {
    const to = Math.min(from + size, view.index.length);
    const mean = (values: number[] | undefined): number =>
      (values ?? []).slice(from, to).reduce((sum, value) => sum + value, 0) / (to - from);
    const [first, last] = [view.index[from], view.index[to - 1]];
    const label = first === last ? `${first}` : `${first}–${last}`;
    view.causes.forEach((cause, row) => {
      bars.push({
        label,
        cause,
        causeLabel: labels.get(cause) ?? cause,
        durationNs: mean(view.total_ns[row]),
        totalNs: mean(view.duration_ns),
      });
    });
  }
  return bars;
}

export function drawSteps(
  view: StepsView,
  labels: Map<string, string>,
  width: number,
): Plot.PlotOptions {
  const bars = makeBars(view, labels);
  const names = [...new Set(bars.map(({ label }) => label))];
  const every = Math.max(1, Math.ceil((names.length * 34) / Math.max(width - 60, 1)));
  return {
    height: 220,
    marginLeft: 56,
    marginRight: 4,
    marginBottom: 34,
    marginTop: 12,
    x: {
      domain: names,
      ticks: names.filter((_, index) => index % every === 0),
      label: "step",
      labelArrow: "none",
      tickSize: 0,
      padding: names.length > 60 ? 0.1 : 0.25,
    },
    y: { label: null, tickFormat: (ns: number) => formatTick(ns, "ns"), ticks: 4, grid: true, tickSize: 0 },
    color: { type: "identity" },
    marks: [
      Plot.barY(
        bars,
        Plot.stackY({
          x: "label",
          y: "durationNs",
          fill: (bar: Bar) => causeColor(bar.cause),
          title: (bar: Bar) =>
            [
              `Step ${bar.label}: ${formatDuration(bar.totalNs)}`,
              `${bar.causeLabel}: ${formatDuration(bar.durationNs)}`,
            ].join("\n"),
          tip: { format: { x: false, y: false, fill: false }, lineHeight: 1.35 },
        }),
      ),
      Plot.ruleY([0]),
    ],
    opacity: { type: "identity" },
  };
}

export const describeStepsChart = (view: StepsView): string =>
  `Step times stacked by cause, ${formatPlural(view.index.length, "step")}`;
