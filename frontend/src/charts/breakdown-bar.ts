// One bar: the time of a step, split by cause.
import * as Plot from "@observablehq/plot";
import { causeColor } from "./colors";
import { formatDuration, formatShare } from "../format";
import type { BreakdownPart } from "../report";

export function drawBreakdownBar(parts: BreakdownPart[], steps: number): Plot.PlotOptions {
  const perStep = (part: BreakdownPart): number => part.total_ns / Math.max(steps, 1);
  return {
    height: 40,
    margin: 0,
    x: { axis: null },
    color: { type: "identity" },
    marks: [
      Plot.barX(
        parts,
        Plot.stackX({
          x: "total_ns",
          fill: (part: BreakdownPart) => causeColor(part.cause),
          insetLeft: 0.75,
          insetRight: 0.75,
          title: (part: BreakdownPart) =>
            `${part.label}\n${formatDuration(perStep(part))}\n${formatShare(part.share)}`,
          tip: { format: { x: false, fill: false }, anchor: "top", lineHeight: 1.35 },
        }),
      ),
    ],
  };
}
