// The row of views, each a link to itself.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { VIEWS, type ViewName, showView, view } from "../state";

const LABELS: Record<ViewName, string> = {
  report: "Report",
  steps: "Steps",
  input: "Input",
  kernels: "Kernels",
  memory: "Memory",
  ranks: "Ranks",
  compare: "Compare",
  rules: "Rules",
  files: "Files",
};

export function Views(): JSX.Element {
  const row = useRef<HTMLElement>(null);
  useEffect(() => {
    // On a narrow page the row scrolls: the view that is shown stands in it.
    const shown = row.current?.querySelector<HTMLElement>("[aria-current]");
    if (row.current && shown) row.current.scrollLeft = shown.offsetLeft - row.current.clientWidth / 3;
  }, [view.value]);
  return (
    <nav class="views" aria-label="Views" ref={row}>
      {VIEWS.map((name) => (
        <button
          key={name}
          type="button"
          aria-current={view.value === name ? "page" : undefined}
          onClick={() => showView(name)}
        >
          {LABELS[name]}
        </button>
      ))}
    </nav>
  );
}
