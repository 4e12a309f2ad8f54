// The findings in their order, refined ones beneath those they refine.
import type { JSX } from "preact";
import { formatPlural } from "../format";
import type { FindingInfo, Report } from "../report";
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

export function Findings({ report, captureId }: { report: Report; captureId: string }): JSX.Element {
  const branches = nestFindings(report.findings);
  const fullShare = Math.max(0, ...report.findings.map(({ saving }) => saving?.share_high ?? 0));
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
          {branches.map(({ id, finding, refined }) => (
            <li key={id} class="card">
              <Finding id={id} finding={finding} {...shared} />
              {refined.length > 0 && (
                <ul class="refined" aria-label="More specific findings within this one">
                  {refined.map((inner) => (
                    <li key={inner.id}>
                      <Finding id={inner.id} finding={inner.finding} isRefined {...shared} />
                    </li>
                  ))}
                </ul>
              )}
            </li>
          ))}
        </ol>
      )}
    </section>
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
