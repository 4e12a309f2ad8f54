// Renders only the rows of a long table that are on screen.
import type { RefObject } from "preact";
import { useLayoutEffect, useState } from "preact/hooks";

/** Rows above and below the screen, so that scrolling shows no gaps. */
const AHEAD = 12;

export interface RowRange {
  from: number;
  to: number;
}

/** The rows on screen, given where the first one is. All rows have the same height. */
export function visibleRows(count: number, rowPx: number, topPx: number, screenPx: number): RowRange {
  const from = Math.min(Math.max(Math.floor(-topPx / rowPx), 0), count);
  const to = Math.min(Math.max(Math.ceil((screenPx - topPx) / rowPx), 0), count);
  return { from, to };
}

/** The rows to render, and those of them on screen, as the page scrolls. */
export function useWindow(
  body: RefObject<HTMLElement | null>,
  count: number,
  rowPx: number,
): { rendered: RowRange; onScreen: RowRange } {
  const [onScreen, setOnScreen] = useState<RowRange>({ from: 0, to: Math.min(count, 30) });
  useLayoutEffect(() => {
    const update = (): void => {
      // TensorBoard gives the frame of a hidden tab no height.
      if (body.current === null || window.innerHeight === 0) return;
      const next = visibleRows(count, rowPx, body.current.getBoundingClientRect().top, window.innerHeight);
      setOnScreen((last) => (last.from === next.from && last.to === next.to ? last : next));
    };
    update();
    addEventListener("scroll", update, { passive: true });
    addEventListener("resize", update);
    return () => {
      removeEventListener("scroll", update);
      removeEventListener("resize", update);
    };
  }, [count, rowPx]);
  const rendered = { from: Math.max(onScreen.from - AHEAD, 0), to: Math.min(onScreen.to + AHEAD, count) };
  return { rendered, onScreen };
}
