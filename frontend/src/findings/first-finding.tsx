// The finding to begin with, in a sentence below the headline.
import type { JSX } from "preact";
import type { Report } from "../report";
import { openFinding } from "../state/store";
import { ArrowIcon } from "../widgets/icons";
import { Prose } from "../widgets/prose";
import { findingIds } from "../finding-ids";
import { nestFindings } from "./list";

export function FirstFinding({ report: { first, findings, headline } }: { report: Report }): JSX.Element | null {
  const finding = first && findings[first.index];
  if (!finding) return null;
  const id = findingIds(findings)[first.index] ?? "";
  const show = (): void => {
    openFinding(id);
    const row = document.querySelector<HTMLElement>(`[aria-controls="finding-${CSS.escape(id)}"]`);
    row?.focus({ preventScroll: true });
    // Scroll after rendering, so that the row stays in view above its opened body.
    requestAnimationFrame(() => row?.scrollIntoView({ block: "start" }));
  };
  return (
    <p class="first-finding">
      {!headline.includes(finding.title.split(": ")[0] ?? "") && (
        <strong>
          {nestFindings(findings).length > 1 && "First: "}
          <Prose text={finding.title} />.{" "}
        </strong>
      )}
      <Prose text={finding.summary} />{" "}
      <button type="button" class="link-button" onClick={show}>
        Show how <ArrowIcon />
      </button>
    </p>
  );
}
