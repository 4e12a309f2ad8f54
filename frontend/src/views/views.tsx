// The row of views, each a link to itself.
import type { JSX } from "preact";
import { VIEWS, type ViewName, showView, view } from "../state";

const LABELS: Record<ViewName, string> = {
  report: "Report",
  compare: "Compare",
  ranks: "Ranks",
  input: "Input",
  kernels: "Kernels",
  memory: "Memory",
  rules: "Rules",
  files: "Files",
};

export function Views(): JSX.Element {
  return (
    <nav class="views" aria-label="Views">
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
