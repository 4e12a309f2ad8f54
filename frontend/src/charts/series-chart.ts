// A value over steps or time.
import * as Plot from "@observablehq/plot";
import { formatCell, formatCount, formatTick } from "../format";
import type { SeriesEvidence } from "../report";

/** With more points, dots would hide the line. */
const MAX_DOTS = 40;

export function drawSeries({ points, unit, x_unit: xUnit }: SeriesEvidence): Plot.PlotOptions {
  const isTime = xUnit === "ns";
  // There is no step between two steps.
  const xFormat = (x: number): string =>
    isTime ? formatCell(x, "ns") : Number.isInteger(x) ? formatCount(x) : "";
  const title = ([x, y]: [number, number]): string =>
    `${isTime ? "" : "step "}${xFormat(x)}\n${formatCell(y, unit)}`;
  const place = { x: "0", y: "1" };
  return {
    height: 180,
    marginLeft: 64,
    marginRight: 12,
    marginTop: 12,
    marginBottom: 34,
    x: {
      label: isTime ? "time" : "step",
      labelAnchor: "center",
      labelArrow: "none",
      tickFormat: (x: number) => (isTime ? formatTick(x, "ns") : xFormat(x)),
      tickSize: 0,
    },
    y: {
      label: null,
      grid: true,
      ticks: 4,
      nice: 4,
      tickSize: 0,
      zero: true,
      tickFormat: (y: number) => formatTick(y, unit),
    },
    marks: [
      Plot.areaY(points, { ...place, fill: "var(--accent)", fillOpacity: 0.1 }),
      Plot.lineY(points, { ...place, stroke: "var(--accent)", strokeWidth: 1.75 }),
      Plot.dot(points.length <= MAX_DOTS ? points : [], { ...place, r: 2.5, fill: "var(--accent)" }),
      Plot.tip(points, Plot.pointerX({ ...place, title, lineHeight: 1.35 })),
    ],
  };
}
