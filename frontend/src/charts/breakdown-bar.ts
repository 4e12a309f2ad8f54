// One bar: the time of a step, split by cause.
import * as Plot from "@observablehq/plot";
import { causeColor, onCauseColor } from "./colors";
import { formatDuration, formatShare } from "../format";
import type { BreakdownPart } from "../report";
import { textWidthPx } from "./text-width";

const HEIGHT_PX = 28;
const LABEL_PX = 12;
/** At both sides of a label. */
const ROOM_PX = 12;
/** Causes below this share are gathered. */
const SMALL_SHARE = 0.01;

/** A cause, or several under one name. */
export interface Block {
  /** The cause, or the name of the group. */
  key: string;
  label: string;
  total_ns: number;
  share: number;
  /** The cause whose color it has: of a group, the largest. */
  color: string;
  /** Of a group; empty for a cause. */
  parts: Block[];
}

/** Compute as one block, whatever its precisions, and what is small as *Other*. */
export function blocksOf(breakdown: BreakdownPart[]): Block[] {
  const causes = breakdown
    .filter(({ total_ns: ns }) => ns > 0)
    .map(({ cause, ...rest }): Block => ({ ...rest, key: cause, color: cause, parts: [] }));
  const isCompute = ({ key }: Block): boolean => key.startsWith("compute-");
  const isSmall = (block: Block): boolean => !isCompute(block) && block.share < SMALL_SHARE;
  return [
    ...group("compute", "Compute", causes.filter(isCompute)),
    ...causes.filter((block) => !isCompute(block) && !isSmall(block)),
    ...group("other", "Other", causes.filter(isSmall)),
  ];
}

/** One block for several; what is alone keeps its name. */
function group(key: string, label: string, parts: Block[]): Block[] {
  const [largest] = [...parts].sort((a, b) => b.total_ns - a.total_ns);
  if (parts.length < 2 || !largest) return parts;
  const sum = (of: "total_ns" | "share"): number => parts.reduce((total, part) => total + part[of], 0);
  return [{ key, label, total_ns: sum("total_ns"), share: sum("share"), color: largest.color, parts }];
}

/** What fits into a segment: its name and share, its share, or nothing. */
export function segmentLabel({ label, share }: Pick<Block, "label" | "share">, widthPx: number): string {
  const text = formatShare(share);
  const whole = `${label}  ${text}`;
  if (textWidthPx(whole, LABEL_PX, 600) + ROOM_PX <= widthPx) return whole;
  return textWidthPx(text, LABEL_PX, 600) + ROOM_PX <= widthPx ? text : "";
}

export function drawBreakdownBar(blocks: Block[], steps: number, width: number, chosen: string | null): Plot.PlotOptions {
  const whole = Math.max(1, blocks.reduce((sum, { total_ns: ns }) => sum + ns, 0));
  const isBright = ({ key }: Block): boolean => chosen === null || chosen === key;
  return {
    height: HEIGHT_PX,
    margin: 0,
    x: { axis: null },
    color: { type: "identity" },
    marks: [
      Plot.barX(
        blocks,
        Plot.stackX({
          x: "total_ns",
          fill: ({ color }: Block) => causeColor(color),
          fillOpacity: (block: Block) => (isBright(block) ? 1 : 0.35),
          insetLeft: 0.75,
          insetRight: 0.75,
          title: ({ label, total_ns: ns, share }: Block) => `${label}\n${formatDuration(ns / steps)}\n${formatShare(share)}`,
          tip: { format: { x: false, fill: false, fillOpacity: false }, anchor: "top", lineHeight: 1.35 },
        }),
      ),
      Plot.textX(
        blocks,
        Plot.stackX({
          x: "total_ns",
          text: (block: Block) => segmentLabel(block, (block.total_ns / whole) * width),
          fill: (block: Block) => (isBright(block) ? onCauseColor(block.color) : "currentColor"),
          fontSize: LABEL_PX,
          fontWeight: 600,
          pointerEvents: "none",
        }),
      ),
    ],
    opacity: { type: "identity" },
  };
}
