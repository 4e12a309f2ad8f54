// A chart drawn by Observable Plot at the width available to it.
import * as Plot from "@observablehq/plot";
import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

interface Props {
  /** Read by screen readers in place of the chart. */
  label: string;
  class?: string;
  draw(width: number): Plot.PlotOptions;
  /**
   * Called with the datum under the pointer when it is clicked. Pointers only: offer the same
   * another way, such as by a button in a table.
   */
  onPick?(datum: unknown): void;
}

export function PlotFigure({ label, class: className = "", draw, onPick }: Props): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const pick = useRef(onPick);
  pick.current = onPick;
  // Draw before the page is painted: a late chart would push down the text below it.
  useLayoutEffect(() => {
    const element = place.current;
    if (!element) return undefined;
    let drawnWidth = 0;
    const update = (): void => {
      const width = Math.floor(element.clientWidth);
      // While another tab is in front, the frame has no height and widths mean nothing.
      if (width === 0 || window.innerHeight === 0 || width === drawnWidth) return;
      drawnWidth = width;
      const svg = Plot.plot({
        className: "plot",
        ariaLabel: label,
        width,
        style: { fontFamily: "inherit", fontSize: "11px", overflow: "visible" },
        ...draw(width),
      });
      svg.setAttribute("role", "img");
      nameParts(svg);
      // What is below the pointer is drawn later.
      new MutationObserver(() => nameParts(svg)).observe(svg, { childList: true, subtree: true });
      // A tip's pointer sets the value of the chart.
      svg.addEventListener("click", () => {
        if (svg.value != null) pick.current?.(svg.value);
      });
      element.replaceChildren(svg);
    };
    update();
    const observer = new ResizeObserver(update);
    observer.observe(element);
    return () => observer.disconnect();
  }, [draw, label]);
  return <div ref={place} class={`figure ${className}${onPick ? " is-clickable" : ""}`} />;
}

/** Plot labels its groups, whose roles allow no label; the chart as a whole has one. */
function nameParts(svg: Element): void {
  for (const group of svg.querySelectorAll("[aria-label]")) {
    group.setAttribute("data-part", group.getAttribute("aria-label") ?? "");
    group.removeAttribute("aria-label");
  }
}
