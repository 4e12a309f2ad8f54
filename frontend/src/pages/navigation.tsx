// The top of the tab: one row of pages, and what is done with the capture that they are about.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { CaptureList } from "../state/answers";
import { isExported } from "../state/exported";
import { isAboutCapture, page, pageLink, report, selectedCapture, selectedId } from "../state/store";
import { runOptions } from "../state/run-options";
import { loadRunView } from "../state/run-view";
import { PageLink } from "../widgets/page-link";
import { CaptureTools, Picker } from "./picker";
import { capturePage, shownPages } from "./registry";
import { comparisonOf } from "./comparisons";

type Link = readonly [name: string, label: string];

/** The pages of the selected capture, with the one that a link leads to, even if it is empty. */
function captureLinks(): Link[] {
  const shown = shownPages(selectedCapture.value, report.value.state === "ready" ? report.value.value : null);
  const current = capturePage(page.value);
  if (!shown.includes(current)) shown.push(current);
  return shown.map(({ name, label }) => [name, label]);
}

export function Top({ list }: { list: CaptureList }): JSX.Element {
  const { captures, scan } = list;
  const isCapture = isAboutCapture(page.value);
  return (
    <div class={`top${isCapture ? " of-capture" : ""}`}>
      <FolderLinks list={list} />
      {isCapture && (
        <>
          <Picker captures={captures} selected={selectedCapture.value} isScanning={scan.is_scanning} />
          {selectedId.value !== null && <CaptureLinks />}
          <CaptureTools captures={captures} selected={selectedCapture.value} />
        </>
      )}
    </div>
  );
}

function FolderLinks({ list: { captures } }: { list: CaptureList }): JSX.Element {
  const selected = isAboutCapture(page.value) ? selectedCapture.value : undefined;
  return (
    <nav class="navigation" aria-label="Log folder">
      <PageLink to={pageLink("runs")} isCurrent={page.value === "runs"}>
        Runs
      </PageLink>
      {captures.length > 1 && !isExported && (
        <PageLink to={selected ? comparisonOf(selected, captures) : pageLink("compare")} isCurrent={page.value === "compare"}>
          Compare
        </PageLink>
      )}
    </nav>
  );
}

function CaptureLinks(): JSX.Element {
  const { id, reads_scalars: readsScalars = false } = selectedCapture.value ?? {};
  const isReady = report.value.state === "ready";
  const options = runOptions.value;
  useEffect(() => {
    if (id !== undefined && isReady && readsScalars) loadRunView(id);
  }, [id, isReady, readsScalars, options]);
  const links = captureLinks();
  const row = useRef<HTMLElement>(null);
  useEffect(() => {
    // In a narrow window the row scrolls: bring the current page into view.
    const current = row.current?.querySelector<HTMLElement>("[aria-current]");
    if (row.current && current) row.current.scrollLeft = current.offsetLeft - row.current.clientWidth / 3;
  }, [page.value, links.length]);
  return (
    <nav class="navigation" aria-label="Pages" ref={row}>
      {links.map(([name, label]) => (
        <PageLink key={name} to={pageLink(name)} isCurrent={capturePage(page.value).name === name}>
          {label}
        </PageLink>
      ))}
    </nav>
  );
}
