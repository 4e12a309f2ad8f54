// A value over steps or time.
import * as Plot from "@observablehq/plot";
import { formatCell } from "../format";
import type { SeriesEvidence } from "../report";

export function drawSeries({ points, unit, x_unit: xUnit }: SeriesEvidence): Plot.PlotOptions {
  const xFormat = (x: number): string => formatCell(x, xUnit === "ns" ? "ns" : "count");
  const title = ([x, y]: [number, number]): string =>
    `${xUnit === "ns" ? "" : `${xUnit} `}${xFormat(x)}\n${formatCell(y, unit)}`;
  return {
    height: 180,
    marginLeft: 64,
    marginRight: 8,
    marginTop: 12,
    marginBottom: 34,
    x: { label: xUnit === "ns" ? "time" : xUnit, labelArrow: "none", tickFormat: xFormat, tickSize: 0 },
    y: {
      label: null,
      grid: true,
      ticks: 4,
      tickSize: 0,
      zero: true,
      tickFormat: (y: number) => formatCell(y, unit),
    },
    marks: [
      Plot.areaY(points, { x: "0", y: "1", fill: "var(--accent)", fillOpacity: 0.1 }),
      Plot.lineY(points, { x: "0", y: "1", stroke: "var(--accent)", strokeWidth: 1.75 }),
      Plot.tip(points, Plot.pointerX({ x: "0", y: "1", title, lineHeight: 1.35 })),
    ],
  };
}
