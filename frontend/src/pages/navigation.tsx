// Two rows of pages: those of the log folder, and below them those of the selected capture.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Capture } from "../state/answers";
import { isAboutCapture, page, pageLink, report, selectedCapture } from "../state/store";
import { runOptions } from "../state/run-options";
import { loadRunView } from "../state/run-view";
import { PageLink } from "../widgets/page-link";
import { capturePage, shownPages } from "./registry";

type Link = readonly [name: string, label: string];

/** The pages of the selected capture, with the one that a link leads to, even if it is empty. */
function captureLinks(): Link[] {
  const shown = shownPages(selectedCapture.value, report.value.state === "ready" ? report.value.value : null);
  const current = capturePage(page.value);
  if (isAboutCapture(page.value) && !shown.includes(current)) shown.push(current);
  return shown.map(({ name, label }) => [name, label]);
}

/** Runs and Compare are about several captures, and History about a run that was recorded again. */
function folderLinks(captures: Capture[]): Link[] {
  const isOnly = captures.length === 1;
  const hasHistory = page.value === "history" || captures.some(({ recordings = 1 }) => recordings > 1);
  return [
    ...(isOnly ? [] : ([["runs", "Runs"], ["compare", "Compare"]] as const)),
    ...(hasHistory ? ([["history", "History"]] as const) : []),
    ["rules", "Rules"],
    ["files", "Files"],
  ];
}

const currentName = (): string => (isAboutCapture(page.value) ? capturePage(page.value).name : page.value);

export function FolderNavigation({ captures }: { captures: Capture[] }): JSX.Element {
  return <Row class="folder-pages" label="Log folder" links={folderLinks(captures)} />;
}

export function CaptureNavigation(): JSX.Element {
  const { id, reads_scalars: readsScalars = false } = selectedCapture.value ?? {};
  const isReady = report.value.state === "ready";
  const options = runOptions.value;
  useEffect(() => {
    if (id !== undefined && isReady && readsScalars) loadRunView(id);
  }, [id, isReady, readsScalars, options]);
  return <Row class="capture-pages" label="Pages" links={captureLinks()} />;
}

function Row({ label, links, class: name }: { label: string; links: Link[]; class: string }): JSX.Element {
  const row = useRef<HTMLElement>(null);
  useEffect(() => {
    // In a narrow window the row scrolls: bring the current page into view.
    const current = row.current?.querySelector<HTMLElement>("[aria-current]");
    if (row.current && current) row.current.scrollLeft = current.offsetLeft - row.current.clientWidth / 3;
  }, [page.value, links.length]);
  return (
    <nav class={`navigation ${name}`} aria-label={label} ref={row}>
      {links.map(([name, label]) => (
        <PageLink key={name} to={pageLink(name)} isCurrent={currentName() === name}>
          {label}
        </PageLink>
      ))}
    </nav>
  );
}
