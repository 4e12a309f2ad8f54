// A figure drawn by Observable Plot at the width that the page gives it.
import * as Plot from "@observablehq/plot";
import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

interface Props {
  /** Spoken in place of the picture. */
  label: string;
  class?: string;
  draw(width: number): Plot.PlotOptions;
}

export function PlotFigure({ label, class: className = "", draw }: Props): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  // Before the page is painted: a figure that comes later pushes down what one reads.
  useLayoutEffect(() => {
    const element = place.current;
    if (!element) return undefined;
    let drawnWidth = 0;
    const update = (): void => {
      const width = Math.floor(element.clientWidth);
      // While another tab is in front the frame has no height, and widths mean nothing.
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
      // Plot names its groups, which have no role that may be named: the picture has one name.
      for (const group of svg.querySelectorAll("[aria-label]")) {
        group.setAttribute("data-part", group.getAttribute("aria-label") ?? "");
        group.removeAttribute("aria-label");
      }
      element.replaceChildren(svg);
    };
    update();
    const observer = new ResizeObserver(update);
    observer.observe(element);
    return () => observer.disconnect();
  }, [draw, label]);
  return <div ref={place} class={`figure ${className}`} />;
}
