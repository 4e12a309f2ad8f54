// The row of pages below the picker.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { PAGES, type PageName, page, showPage } from "../state/store";

const LABELS: Record<PageName, string> = {
  report: "Report",
  steps: "Steps",
  input: "Input",
  kernels: "Kernels",
  operators: "Operators",
  memory: "Memory",
  ranks: "Ranks",
  compare: "Compare",
  rules: "Rules",
  files: "Files",
};

export function Navigation(): JSX.Element {
  const row = useRef<HTMLElement>(null);
  useEffect(() => {
    // In a narrow window the row scrolls: bring the current page into view.
    const current = row.current?.querySelector<HTMLElement>("[aria-current]");
    if (row.current && current) row.current.scrollLeft = current.offsetLeft - row.current.clientWidth / 3;
  }, [page.value]);
  return (
    <nav class="navigation" aria-label="Pages" ref={row}>
      {PAGES.map((name) => (
        <button
          key={name}
          type="button"
          aria-current={page.value === name ? "page" : undefined}
          onClick={() => showPage(name)}
        >
          {LABELS[name]}
        </button>
      ))}
    </nav>
  );
}
