// How wide a text is drawn, in the font of the tab.

let pen: CanvasRenderingContext2D | null | undefined;
/** Wider than the letters of most fonts, for places without a canvas. */
const LETTER_EMS = 0.66;

/** The width of a text in pixels. */
export function textWidthPx(text: string, sizePx: number, weight = 400): number {
  if (typeof document === "undefined") return text.length * LETTER_EMS * sizePx;
  pen ??= document.createElement("canvas").getContext("2d");
  if (!pen) return text.length * LETTER_EMS * sizePx;
  pen.font = `${weight} ${sizePx}px ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(text).width;
}
