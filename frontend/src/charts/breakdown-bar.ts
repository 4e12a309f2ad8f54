// One bar: the time of a step, split by cause.
import * as Plot from "@observablehq/plot";
import { causeColor, onCauseColor } from "./colors";
import { formatDuration, formatShare } from "../format";
import type { BreakdownPart } from "../report";
import { textWidthPx } from "./text-width";

const HEIGHT_PX = 44;
const LABEL_PX = 12;
/** At both sides of a label. */
const ROOM_PX = 12;

/** What fits into a segment: its name and share, its share, or nothing. */
export function segmentLabel({ label, share }: BreakdownPart, widthPx: number): string {
  const text = formatShare(share);
  const whole = `${label}  ${text}`;
  if (textWidthPx(whole, LABEL_PX, 600) + ROOM_PX <= widthPx) return whole;
  return textWidthPx(text, LABEL_PX, 600) + ROOM_PX <= widthPx ? text : "";
}

export function drawBreakdownBar(
  parts: BreakdownPart[],
  steps: number,
  width: number,
  chosen: string | null,
): Plot.PlotOptions {
  const perStep = (part: BreakdownPart): number => part.total_ns / Math.max(steps, 1);
  const whole = Math.max(1, parts.reduce((sum, { total_ns: ns }) => sum + ns, 0));
  const labels = (part: BreakdownPart): string => segmentLabel(part, (part.total_ns / whole) * width);
  return {
    height: HEIGHT_PX,
    margin: 0,
    x: { axis: null },
    color: { type: "identity" },
    marks: [
      Plot.barX(
        parts,
        Plot.stackX({
          x: "total_ns",
          fill: (part: BreakdownPart) => causeColor(part.cause),
          fillOpacity: (part: BreakdownPart) => (chosen === null || chosen === part.cause ? 1 : 0.35),
          insetLeft: 0.75,
          insetRight: 0.75,
          title: (part: BreakdownPart) =>
            `${part.label}\n${formatDuration(perStep(part))}\n${formatShare(part.share)}`,
          tip: { format: { x: false, fill: false, fillOpacity: false }, anchor: "top", lineHeight: 1.35 },
        }),
      ),
      Plot.textX(
        parts,
        Plot.stackX({
          x: "total_ns",
          text: labels,
          fill: (part: BreakdownPart) =>
            chosen === null || chosen === part.cause ? onCauseColor(part.cause) : "currentColor",
          fontSize: LABEL_PX,
          fontWeight: 600,
          pointerEvents: "none",
        }),
      ),
    ],
    opacity: { type: "identity" },
  };
}
