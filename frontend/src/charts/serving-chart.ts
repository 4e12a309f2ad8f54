// Step times of an inference server, colored by the kind of step.
import * as Plot from "@observablehq/plot";
import { causeColor } from "./colors";
import { formatCount, formatDuration, formatPlural, formatTick } from "../format";
import type { ServingView } from "../report";

/** Colors of causes that can be told apart by everyone; the chart has no causes. */
const COLORS: Record<string, string> = {
  prefill: causeColor("communication"),
  mixed: causeColor("synchronization"),
  decode: causeColor("compute-16"),
};

export const stepColor = (kind: string): string => COLORS[kind] ?? causeColor("unexplained");

interface Bar {
  place: number;
  kind: string;
  ns: number;
  title: string;
}

export function serverBars(view: ServingView): Bar[] {
  return view.step_ns.map((ns, place) => {
    const kind = view.step_kind[place] ?? "";
    const [requests, tokens] = [view.step_requests[place] ?? null, view.step_tokens[place] ?? null];
    const graphs = view.step_graphs[place] ?? 0;
    const lines = [
      `Step ${place + 1}: ${kind}, ${formatDuration(ns)}`,
      ...(requests === null ? [] : [formatPlural(requests, "request")]),
      ...(tokens === null ? [] : [formatPlural(tokens, "token")]),
      graphs > 0 ? formatPlural(graphs, "graph replay") : "no graph replay",
    ];
    return { place, kind, ns, title: lines.join("\n") };
  });
}

/** Narrower bars touch: gaps between them would be wider than the bars. */
const MAX_GAPS = 120;

export function drawServerSteps(view: ServingView, width: number): Plot.PlotOptions {
  const bars = serverBars(view);
  const inset = bars.length > MAX_GAPS ? 0 : Math.min(0.12 * (width / bars.length), 24);
  return {
    height: Math.max(220, Math.min(320, width * 0.4)),
    marginLeft: 56,
    marginRight: 4,
    marginBottom: 34,
    marginTop: 16,
    x: {
      domain: [0.5, bars.length + 0.5],
      label: "step",
      labelArrow: "none",
      tickSize: 0,
      // There is no step between two steps.
      tickFormat: (step: number) => (Number.isInteger(step) ? formatCount(step) : ""),
      ticks: Math.min(bars.length, Math.floor(width / 60)),
    },
    y: { label: null, tickFormat: (ns: number) => formatTick(ns, "ns"), ticks: 4, nice: 4, grid: true, tickSize: 0, zero: true },
    color: { type: "identity" },
    marks: [
      Plot.rectY(bars, {
        x1: (bar: Bar) => bar.place + 0.5,
        x2: (bar: Bar) => bar.place + 1.5,
        y: "ns",
        fill: (bar: Bar) => stepColor(bar.kind),
        insetLeft: inset,
        insetRight: inset,
        title: "title",
        tip: { format: { x: false, y: false, fill: false }, lineHeight: 1.35 },
      }),
      Plot.ruleY([0]),
    ],
  };
}
