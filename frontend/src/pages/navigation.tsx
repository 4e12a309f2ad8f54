// The row of pages below the picker.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { captures, isAboutCapture, page, pageLink, report, selectedCapture, selectedId } from "../state/store";
import { PageLink } from "../widgets/page-link";
import { capturePage, shownPages } from "./registry";

type Link = readonly [name: string, label: string];

/** The pages of the selected capture, with the one that a link leads to, even if it is empty. */
function captureLinks(): Link[] {
  if (selectedId.value === null) return [];
  const shown = shownPages(selectedCapture.value, report.value.state === "ready" ? report.value.value : null);
  const current = capturePage(page.value);
  if (isAboutCapture(page.value) && !shown.includes(current)) shown.push(current);
  return shown.map(({ name, label }) => [name, label]);
}

function links(): Link[] {
  const isOnly = captures.value.state === "ready" && captures.value.value.captures.length === 1;
  return [
    ...(isOnly ? [] : [["runs", "Runs"] as const]),
    ...captureLinks(),
    ["compare", "Compare"],
    ["rules", "Rules"],
    ["files", "Files"],
  ];
}

const currentName = (): string => (isAboutCapture(page.value) ? capturePage(page.value).name : page.value);

export function Navigation(): JSX.Element {
  const row = useRef<HTMLElement>(null);
  useEffect(() => {
    // In a narrow window the row scrolls: bring the current page into view.
    const current = row.current?.querySelector<HTMLElement>("[aria-current]");
    if (row.current && current) row.current.scrollLeft = current.offsetLeft - row.current.clientWidth / 3;
  }, [page.value]);
  return (
    <nav class="navigation" aria-label="Pages" ref={row}>
      {links().map(([name, label]) => (
        <PageLink key={name} to={pageLink(name)} isCurrent={currentName() === name}>
          {label}
        </PageLink>
      ))}
    </nav>
  );
}
