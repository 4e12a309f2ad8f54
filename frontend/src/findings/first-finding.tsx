// Where to begin: the change that ranks first, in a sentence below the headline.
import type { JSX } from "preact";
import type { Report } from "../report";
import { openFinding } from "../state/store";
import { type Branch, nestFindings } from "./list";
import { ArrowIcon } from "../widgets/icons";
import { Prose } from "../widgets/prose";

/** A more specific finding speaks for a general one if it would save nearly as much. */
const NEARLY = 0.8;

/** What to name first: of the finding that ranks first, the most specific that stands for it. */
export function chooseFirst(branches: Branch[]): Pick<Branch, "id" | "finding"> | undefined {
  const [first] = branches;
  const enough = (first?.finding.saving?.expected_ns ?? Infinity) * NEARLY;
  return first?.refined.find(({ finding }) => (finding.saving?.expected_ns ?? 0) >= enough) ?? first;
}

export function FirstChange({ report }: { report: Report }): JSX.Element | null {
  const branches = nestFindings(report.findings);
  const first = chooseFirst(branches);
  if (!first) return null;
  const show = (): void => {
    openFinding(first.id);
    // The row is there already; what opens beneath it must not push it out of sight.
    const row = document.querySelector<HTMLElement>(`[aria-controls="finding-${CSS.escape(first.id)}"]`);
    row?.focus({ preventScroll: true });
    requestAnimationFrame(() => row?.scrollIntoView({ block: "start" }));
  };
  return (
    <p class="first-change">
      <strong>
        {branches.length > 1 && "First: "}
        <Prose text={first.finding.title} />.
      </strong>{" "}
      <Prose text={first.finding.summary} />{" "}
      <button type="button" class="link-button" onClick={show}>
        Show how <ArrowIcon />
      </button>
    </p>
  );
}
