// Charts of what changed from a base run to others.
import * as Plot from "@observablehq/plot";
import { formatChange, formatDuration, formatTick } from "../format";
import type { CauseChange, ComparedTarget } from "../report";

const ROW_PX = 30;
const NARROW_PX = 560;

/** Each cause's part of the change: less time to the left in green, more to the right in red. */
export function drawCauses(causes: CauseChange[], width: number): Plot.PlotOptions {
  const isNarrow = width < NARROW_PX;
  const most = Math.max(1, ...causes.map(({ change_ns: ns }) => Math.abs(ns)));
  const rowPx = isNarrow ? ROW_PX + 16 : ROW_PX;
  const room = isNarrow ? 1.7 : 1.35;
  const title = ({ label, base_ns: base, target_ns: target, change_ns: change }: CauseChange): string =>
    [label, `${formatDuration(base)} → ${formatDuration(target)}`, formatChange(change)].join("\n");
  return {
    height: causes.length * rowPx + 8,
    marginTop: isNarrow ? 10 : 2,
    marginBottom: 2,
    marginLeft: isNarrow ? 2 : 190,
    marginRight: 2,
    // Leave room for the numbers at the ends of the bars.
    x: { axis: null, domain: [-most * room, most * room] },
    y: {
      domain: causes.map(({ label }) => label),
      label: null,
      tickSize: 0,
      padding: isNarrow ? 0.5 : 0.28,
      axis: isNarrow ? null : "left",
    },
    color: { type: "identity" },
    marks: [
      Plot.barX(causes, {
        x: "change_ns",
        y: "label",
        fill: ({ change_ns: ns }: CauseChange) => (ns < 0 ? "var(--good)" : "var(--high)"),
        title,
        tip: { format: { x: false, y: false, fill: false }, lineHeight: 1.35 },
      }),
      Plot.ruleX([0], { stroke: "var(--border-strong)" }),
      Plot.text(causes, {
        x: "change_ns",
        y: "label",
        text: ({ change_ns: ns }: CauseChange) => formatChange(ns),
        textAnchor: "start",
        dx: 6,
        filter: ({ change_ns: ns }: CauseChange) => ns >= 0,
      }),
      Plot.text(causes, {
        x: "change_ns",
        y: "label",
        text: ({ change_ns: ns }: CauseChange) => formatChange(ns),
        textAnchor: "end",
        dx: -6,
        filter: ({ change_ns: ns }: CauseChange) => ns < 0,
      }),
      Plot.text(isNarrow ? causes : [], {
        y: "label",
        text: "label",
        frameAnchor: "left",
        textAnchor: "start",
        dy: -18,
        fill: "var(--text-muted)",
      }),
    ],
  };
}

/** The mean step of all runs with its confidence interval; a line marks the base's. */
export function drawRuns(baseNs: number, targets: ComparedTarget[], width: number): Plot.PlotOptions {
  const isNarrow = width < NARROW_PX;
  const rows = targets.map(({ run, change }) => {
    const ns = change.target_ns;
    const wasNs = change.base_ns;
    return {
      name: run.name,
      ns,
      low: change.low_ns === null ? ns : wasNs + change.low_ns,
      high: change.high_ns === null ? ns : wasNs + change.high_ns,
    };
  });
  const rowPx = isNarrow ? 46 : ROW_PX + 4;
  return {
    height: rows.length * rowPx + 40,
    marginTop: isNarrow ? 14 : 6,
    marginBottom: 34,
    marginLeft: isNarrow ? 8 : 230,
    marginRight: 24,
    x: {
      domain: [0, Math.max(baseNs, ...rows.map(({ high }) => high)) * 1.04],
      tickFormat: (ns: number) => formatTick(ns, "ns"),
      ticks: Math.max(2, Math.floor(width / 160)),
      tickSize: 0,
      grid: true,
      label: "step",
      labelAnchor: "center",
      labelArrow: "none",
    },
    y: { domain: rows.map(({ name }) => name), label: null, tickSize: 0, axis: isNarrow ? null : "left" },
    marks: [
      Plot.ruleX([baseNs], { stroke: "var(--text-muted)", strokeDasharray: "3 3" }),
      Plot.link(rows, {
        x1: "low",
        x2: "high",
        y1: "name",
        y2: "name",
        stroke: "var(--accent)",
        strokeOpacity: 0.35,
        strokeWidth: 9,
        strokeLinecap: "round",
      }),
      Plot.dot(rows, {
        x: "ns",
        y: "name",
        r: 5,
        fill: "var(--accent)",
        stroke: "var(--surface)",
        title: ({ name, ns, low, high }: (typeof rows)[number]) =>
          `${name}\n${formatDuration(ns)}\n95 % interval ${formatDuration(low)} to ${formatDuration(high)}`,
        tip: { format: { x: false, y: false }, lineHeight: 1.35 },
      }),
      Plot.text(isNarrow ? rows : [], {
        y: "name",
        text: "name",
        frameAnchor: "left",
        textAnchor: "start",
        dy: -17,
        fill: "var(--text-muted)",
      }),
    ],
  };
}
