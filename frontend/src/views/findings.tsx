// The findings in their order, refined ones beneath those they refine.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { formatPlural } from "../format";
import type { FindingInfo, Report } from "../report";
import { openFindings } from "../state";
import { Finding } from "./finding";
import { CheckIcon } from "./icons";

export interface Branch {
  id: string;
  finding: FindingInfo;
  refined: { id: string; finding: FindingInfo }[];
}

/** Nests refined findings; one whose general finding is absent stands by itself. */
export function nestFindings(findings: FindingInfo[]): Branch[] {
  const seen = new Map<string, number>();
  const named = findings.map((finding) => {
    const count = (seen.get(finding.rule_id) ?? 0) + 1;
    seen.set(finding.rule_id, count);
    return { id: count === 1 ? finding.rule_id : `${finding.rule_id}~${count}`, finding };
  });
  const branches: Branch[] = named
    .filter(({ finding }) => finding.refines === null || !seen.has(finding.refines))
    .map((entry) => ({ ...entry, refined: [] }));
  for (const entry of named) {
    if (entry.finding.refines === null) continue;
    branches.find(({ id }) => id === entry.finding.refines)?.refined.push(entry);
  }
  return branches;
}

/** Rows shown at first: what to change is seen at a glance, the rest waits behind a button. */
const FIRST = 6;
const FIRST_REFINED = 3;

export function Findings({ report, captureId }: { report: Report; captureId: string }): JSX.Element {
  const branches = nestFindings(report.findings);
  const fullShare = Math.max(0, ...report.findings.map(({ saving }) => saving?.share_high ?? 0));
  const [isWhole, setWhole] = useState(false);
  const isOpen = ({ id }: { id: string }): boolean => openFindings.value.has(id);
  // One or two more rows take no more room than the button; what a link opens is always there.
  const isLong = !isWhole && branches.length > FIRST + 2;
  const shown = isLong
    ? branches.filter((branch, place) => place < FIRST || [branch, ...branch.refined].some(isOpen))
    : branches;
  const shared = { report, fullShare, captureId };
  return (
    <section aria-labelledby="findings">
      <div class="section-head">
        <h2 id="findings">What to change</h2>
        {branches.length > 0 && (
          <span class="muted">
            {formatPlural(report.findings.length, "finding")}, by expected saving per step
          </span>
        )}
        {fullShare > 0 && <RangeKey />}
      </div>
      {branches.length === 0 ? (
        <p class="card all-clear">
          <CheckIcon /> Nothing found. The checks below say what was looked at, and what could not be.
        </p>
      ) : (
        <ol class="findings">
          {shown.map(({ id, finding, refined }) => (
            <li key={id} class="card">
              <Finding id={id} finding={finding} {...shared} />
              {refined.length > 0 && <Refined refined={refined} shared={shared} />}
            </li>
          ))}
        </ol>
      )}
      {shown.length < branches.length && (
        <button type="button" class="show-all-findings" onClick={() => setWhole(true)}>
          Show {formatPlural(branches.length - shown.length, "finding")} that would save less
        </button>
      )}
    </section>
  );
}

interface Shared {
  report: Report;
  fullShare: number;
  captureId: string;
}

function Refined({ refined, shared }: Pick<Branch, "refined"> & { shared: Shared }): JSX.Element {
  const [isWhole, setWhole] = useState(false);
  const shown =
    isWhole || refined.length <= FIRST_REFINED + 1
      ? refined
      : refined.filter(({ id }, place) => place < FIRST_REFINED || openFindings.value.has(id));
  return (
    <ul class="refined" aria-label="More specific findings within this one">
      {shown.map((inner) => (
        <li key={inner.id}>
          <Finding id={inner.id} finding={inner.finding} isRefined {...shared} />
        </li>
      ))}
      {shown.length < refined.length && (
        <li>
          <button type="button" class="show-all" onClick={() => setWhole(true)}>
            Show {formatPlural(refined.length - shown.length, "more specific finding")}
          </button>
        </li>
      )}
    </ul>
  );
}

function RangeKey(): JSX.Element {
  return (
    <span class="range-key" aria-hidden="true">
      <span>
        <i class="range-low" /> at least
      </span>
      <span>
        <i class="range-tick" /> expected
      </span>
      <span>
        <i class="range-high" /> at most
      </span>
    </span>
  );
}
