// A whole run: time per step and what was logged, over steps, with the profiled moments.
import * as Plot from "@observablehq/plot";
import { formatCell, formatCount, formatDuration, formatElapsed, formatTick } from "../format";
import type { Curve, TrainingView } from "../report";

/** Longer steps are drawn at the top, unless they are usual: one evaluation would flatten all others. */
const CUT_AT = 3;
const ABOVE_USUAL = 1.1;
const MARGINS = { marginLeft: 64, marginRight: 14, marginBottom: 34 };

/** The name and the color of intervals that are not usual. */
export const REASONS: Record<string, [name: string, color: string]> = {
  start: ["slow start", "var(--cause-compiling)"],
  evaluation: ["evaluation", "var(--cause-communication)"],
  recording: ["recording a profile", "var(--cause-copies)"],
  pause: ["pause", "var(--high)"],
};

interface Point {
  step: number;
  ns: number;
  /** Where it is drawn. */
  shownNs: number;
  reason: string;
  part: number;
  title: string;
}

/** Where the chart ends: all usual steps fit, also those of a run that became slower for good. */
export function topOf({ times, regimes }: TrainingView): number {
  const medianNs = Math.max(...regimes.map(({ step_ns: ns }) => ns));
  const usual = times.per_step_ns.filter((_, row) => times.reason[row] === "");
  return usual.reduce((most, ns) => Math.max(most, ABOVE_USUAL * ns), CUT_AT * medianNs);
}

export function timePoints(view: TrainingView): Point[] {
  const { times, unit } = view;
  const top = topOf(view);
  return times.step.map((step, row) => {
    const ns = times.per_step_ns[row] ?? 0;
    const reason = times.reason[row] ?? "";
    const last = times.last_step[row] ?? step;
    const name = REASONS[reason]?.[0];
    const title = [
      `${unit}s ${formatCount(step)}–${formatCount(last)}`,
      `${formatDuration(ns)} per ${unit}`,
      ...(name ? [name] : []),
    ].join("\n");
    return { step: last, ns, shownNs: Math.min(ns, top), reason, part: times.part[row] ?? 0, title };
  });
}

/** The first and the last step of the run, which all charts of it show. */
function domainOf({ times }: TrainingView): [number, number] {
  // No spread: it would put each step on the stack.
  const first = times.step.reduce((least, step) => Math.min(least, step), Infinity);
  const last = times.last_step.reduce((most, step) => Math.max(most, step), -Infinity);
  return [first, last];
}

const profiledAt = (view: TrainingView): { step: number; title: string }[] =>
  view.recordings.flatMap(({ first_step: step, sentence }) => (step === null ? [] : [{ step, title: sentence }]));

function stepAxis(view: TrainingView, width: number): Plot.ScaleOptions {
  return {
    domain: domainOf(view),
    label: view.unit,
    labelAnchor: "center",
    labelArrow: "none",
    tickSize: 0,
    ticks: Math.max(2, Math.floor(width / 110)),
    tickFormat: (step: number) => (Number.isInteger(step) ? formatCount(step) : ""),
  };
}

const profileMarks = (view: TrainingView): Plot.Markish[] => [
  Plot.ruleX(profiledAt(view), { x: "step", stroke: "currentColor", strokeDasharray: "3 3", strokeOpacity: 0.6 }),
  Plot.dot(profiledAt(view), {
    x: "step",
    frameAnchor: "top",
    dy: -8,
    r: 4.5,
    symbol: "diamond",
    fill: "currentColor",
    title: "title",
  }),
];

export function drawTimes(view: TrainingView, width: number): Plot.PlotOptions {
  const points = timePoints(view);
  const top = topOf(view);
  const unusual = points.filter(({ reason }) => reason !== "");
  const color = ({ reason }: Point): string => REASONS[reason]?.[1] ?? "var(--accent)";
  return {
    ...MARGINS,
    height: Math.max(220, Math.min(300, width * 0.36)),
    marginTop: 26,
    x: stepAxis(view, width),
    y: {
      label: null,
      grid: true,
      ticks: 4,
      domain: [0, Math.min(top, 1.05 * Math.max(...view.regimes.map(({ step_ns: ns }) => ns), ...points.map(({ shownNs }) => shownNs)))],
      tickSize: 0,
      tickFormat: (ns: number) => formatTick(ns, "ns"),
    },
    color: { type: "identity" },
    marks: [
      ...profileMarks(view),
      Plot.ruleY(view.regimes, {
        x1: "first_step",
        x2: "last_step",
        y: "step_ns",
        stroke: "currentColor",
        strokeDasharray: "4 3",
        pointerEvents: "none",
      }),
      Plot.lineY(points, { x: "step", y: "shownNs", z: "part", stroke: "var(--accent)", strokeWidth: 1.25, strokeOpacity: 0.9 }),
      Plot.dot(
        unusual.filter(({ ns }) => ns <= top),
        { x: "step", y: "shownNs", r: 3, fill: color },
      ),
      Plot.dot(
        unusual.filter(({ ns }) => ns > top),
        { x: "step", y: "shownNs", symbol: "triangle", r: 3.5, dy: 3, fill: color },
      ),
      Plot.tip(points, Plot.pointerX({ x: "step", y: "shownNs", title: "title", lineHeight: 1.35 })),
      Plot.ruleY([0]),
    ],
  };
}

/** A value that the run logged, over the same steps. */
export function drawCurve(view: TrainingView, curve: Curve, width: number): Plot.PlotOptions {
  const points = curve.step.map((step, row) => ({ step, value: curve.value[row] ?? 0 }));
  const title = ({ step, value }: { step: number; value: number }): string =>
    `${view.unit} ${formatCount(step)}\n${formatCell(value, curve.unit)}`;
  return {
    ...MARGINS,
    height: 150,
    marginTop: 12,
    x: stepAxis(view, width),
    y: { label: null, grid: true, ticks: 3, nice: 3, tickSize: 0, zero: curve.unit !== "", tickFormat: (y: number) => formatTick(y, curve.unit) },
    marks: [
      Plot.ruleX(profiledAt(view), { x: "step", stroke: "currentColor", strokeDasharray: "3 3", strokeOpacity: 0.6 }),
      Plot.lineY(points, { x: "step", y: "value", stroke: "var(--accent)", strokeWidth: 1.25 }),
      Plot.tip(points, Plot.pointerX({ x: "step", y: "value", title, lineHeight: 1.35 })),
    ],
  };
}

export const describeTimes = (view: TrainingView): string =>
  `Time per ${view.unit} over the run of ${formatElapsed(view.elapsed_ns)}; profiles are marked`;
