// The row of pages below the picker.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { CAPTURE_PAGES, type PageName, captures, page, pageLink, report, selectedCapture, selectedId } from "../state/store";
import { isParallel } from "../text";
import { PageLink } from "../widgets/page-link";

const LABELS: Record<PageName, string> = {
  runs: "Runs",
  report: "Report",
  training: "Training",
  history: "History",
  steps: "Steps",
  input: "Input",
  kernels: "Kernels",
  operators: "Operators",
  memory: "Memory",
  ranks: "Ranks",
  parallelism: "Parallelism",
  serving: "Serving",
  compare: "Compare",
  rules: "Rules",
  files: "Files",
};

/** Pages about data that no file of a format has. */
const WITHOUT: Record<string, readonly PageName[]> = {
  "torch-compile-log": ["steps", "input", "kernels", "operators", "memory", "ranks"],
  "memory-snapshot": ["steps", "input", "kernels", "operators"],
};

/** Whether a page has something to show, or a link leads to it. */
function applies(name: PageName): boolean {
  if (name === page.value) return true;
  if (WITHOUT[selectedCapture.value?.format ?? ""]?.includes(name)) return false;
  if (name !== "training" && name !== "history" && name !== "parallelism" && name !== "serving") return true;
  if (name === "training") return selectedCapture.value?.has_scalars === true;
  if (name === "history") return (selectedCapture.value?.recordings ?? 1) > 1;
  if (report.value.state !== "ready") return false;
  const shown = report.value.value;
  return name === "parallelism" ? isParallel(shown) : shown.workload.mode === "inference server";
}

/** The pages that have something to show. */
function namesOf(): PageName[] {
  const isOnly = captures.value.state === "ready" && captures.value.value.captures.length === 1;
  return [
    ...(isOnly ? [] : (["runs"] as const)),
    ...(selectedId.value === null ? [] : CAPTURE_PAGES.filter(applies)),
    "compare",
    "rules",
    "files",
  ];
}

export function Navigation(): JSX.Element {
  const row = useRef<HTMLElement>(null);
  useEffect(() => {
    // In a narrow window the row scrolls: bring the current page into view.
    const current = row.current?.querySelector<HTMLElement>("[aria-current]");
    if (row.current && current) row.current.scrollLeft = current.offsetLeft - row.current.clientWidth / 3;
  }, [page.value]);
  return (
    <nav class="navigation" aria-label="Pages" ref={row}>
      {namesOf().map((name) => (
        <PageLink key={name} to={pageLink(name)} isCurrent={page.value === name}>
          {LABELS[name]}
        </PageLink>
      ))}
    </nav>
  );
}
