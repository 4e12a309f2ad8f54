// The findings in the order of the report, specific ones below the general ones they refine.
import type { JSX } from "preact";
import { findingIds } from "../finding-ids";
import { formatCount, formatPlural } from "../format";
import type { FindingInfo, Report } from "../report";
import { chooseCause, chosenCause } from "../state/chosen-cause";
import { isExported } from "../state/exported";
import { useFlag } from "../state/linked";
import { chosenFinding } from "../state/store";
import { causeName } from "../text";
import { Finding } from "./finding";
import { isSetAside } from "./remark";
import { Fold } from "../widgets/fold";
import { CheckIcon } from "../widgets/icons";
import { WhatIf, canTick } from "./what-if";

/** Whether what a report finds is to be acted on, before it is recorded again. */
export const mayAct = ({ trust }: Pick<Report, "trust">): boolean => trust?.level !== "do not act";

export interface Branch {
  id: string;
  finding: FindingInfo;
  refined: { id: string; finding: FindingInfo }[];
}

/** Nests findings below those they refine. */
export function nestFindings(findings: FindingInfo[]): Branch[] {
  const ids = findingIds(findings);
  const entries = findings.map((finding, index) => ({ id: ids[index] ?? "", finding }));
  const branches: Branch[] = entries
    .filter(({ finding }) => finding.refines === null || !ids.includes(finding.refines))
    .map((entry) => ({ ...entry, refined: [] }));
  for (const entry of entries) {
    if (entry.finding.refines === null) continue;
    branches.find(({ id }) => id === entry.finding.refines)?.refined.push(entry);
  }
  return branches;
}

/** What is left of the findings, and apart from it what the user decided against. */
export function setAsideApart(branches: Branch[]): [left: Branch[], aside: Branch[]] {
  const left: Branch[] = [];
  const aside: Branch[] = [];
  for (const branch of branches) {
    if (isSetAside(branch.finding)) aside.push(branch);
    else {
      left.push({ ...branch, refined: branch.refined.filter(({ finding }) => !isSetAside(finding)) });
      for (const entry of branch.refined) if (isSetAside(entry.finding)) aside.push({ ...entry, refined: [] });
    }
  }
  return [left, aside];
}

/** How many findings are shown at first, so that the list fits on a screen. */
const SHORT = 6;
const SHORT_REFINED = 3;

export function FindingList({ report, captureId }: { report: Report; captureId: string }): JSX.Element {
  const cause = chosenCause.value;
  const [all, aside] = setAsideApart(nestFindings(report.findings));
  const asideCount = report.findings.filter(isSetAside).length;
  const branches = cause === null ? all : all.filter((branch) => isAbout(branch, cause));
  const fullShare = Math.max(0, ...report.findings.map(({ saving }) => saving?.share_high ?? 0));
  const [isWhole, setWhole] = useFlag("all");
  const isOpen = ({ id }: { id: string }): boolean => chosenFinding.value === id;
  // One or two more rows take no more space than the button. The open finding is always shown.
  const isLong = !isWhole && branches.length > SHORT + 2;
  const shown = isLong
    ? branches.filter((branch, index) => index < SHORT || [branch, ...branch.refined].some(isOpen))
    : branches;
  const canCombine = mayAct(report) && report.findings.filter(canTick).length > 1;
  const shared = { report, fullShare, captureId, canCombine };
  return (
    <section class="card finding-list" aria-labelledby="findings">
      <div class="section-head">
        <h2 id="findings">What to change</h2>
        {cause !== null ? (
          <ChosenCause cause={cause} shown={branches.length} of={all.length} />
        ) : (
          branches.length > 0 && (
            <span class="muted">
              {formatPlural(report.findings.length - asideCount, "finding")}
              {branches.length > 1 && `, ${describeOrder(report)}`}
              {!mayAct(report) && ": record again before you act on them"}
            </span>
          )
        )}
      </div>
      {canCombine && !isExported && <WhatIf report={report} captureId={captureId} ids={findingIds(report.findings)} />}
      {branches.length === 0 && (cause !== null || aside.length > 0) ? (
        <p class="all-clear">{cause === null ? "No other findings." : "No finding saves time of this cause."}</p>
      ) : branches.length === 0 ? (
        <NoFindings passed={report.outcomes.filter(({ status }) => status === "passed").length} isBlind={Boolean(report.blind_spot)} />
      ) : (
        <ol class="findings" onKeyDown={moveFocus}>
          {shown.map((branch) => (
            <BranchItem key={branch.id} branch={branch} shared={shared} />
          ))}
        </ol>
      )}
      {shown.length < branches.length && (
        <button type="button" class="show-all" onClick={() => setWhole(true)}>
          Show {formatPlural(branches.length - shown.length, "more finding")}
        </button>
      )}
      {asideCount > 0 && (
        <Fold name="aside" title={`${formatCount(asideCount)} set aside`} isOpen={aside.some((branch) => [branch, ...branch.refined].some(isOpen))}>
          <ol class="findings">
            {aside.map((branch) => (
              <BranchItem key={branch.id} branch={branch} shared={shared} />
            ))}
          </ol>
        </Fold>
      )}
    </section>
  );
}

function BranchItem({ branch: { id, finding, refined }, shared }: { branch: Branch; shared: Shared }): JSX.Element {
  return (
    <li>
      <Finding id={id} finding={finding} {...shared} />
      {refined.length > 0 && <Refined of={id} refined={refined} shared={shared} />}
    </li>
  );
}

/** Arrow keys go from finding to finding. */
function moveFocus(event: KeyboardEvent): void {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const { target, currentTarget } = event;
  if (by === undefined || !(target instanceof HTMLElement) || !target.matches(".finding-row")) return;
  const rows = [...(currentTarget as HTMLElement).querySelectorAll<HTMLElement>(".finding-row")];
  event.preventDefault();
  rows[rows.indexOf(target) + by]?.focus();
}

/** Findings that save no time are in order of their severity. */
const describeOrder = ({ findings, steps }: Report): string =>
  findings.every(({ saving, bounds }) => !saving && !bounds)
    ? "most important first"
    : `sorted by saving${steps.used > 0 ? " per step" : ""}`;

/** An empty list is good news only if enough checks passed; the headline says that most could not run. */
function NoFindings({ passed, isBlind }: { passed: number; isBlind: boolean }): JSX.Element {
  if (passed === 0) return <p class="all-clear">No findings, because nothing could be checked. See below what a check needs.</p>;
  return (
    <p class="all-clear">
      {!isBlind && <CheckIcon />} No findings{isBlind ? "" : `: ${formatPlural(passed, "check")} passed`}. See below what could not be checked.
    </p>
  );
}

/** Whether a finding, or one that refines it, saves time of a cause. */
export const isAbout = ({ finding, refined }: Branch, cause: string): boolean =>
  [finding, ...refined.map((entry) => entry.finding)].some(({ causes }) => causes?.includes(cause));

function ChosenCause({ cause, shown, of }: { cause: string; shown: number; of: number }): JSX.Element {
  return (
    <span class="muted" role="status">
      {shown} of {formatPlural(of, "finding")} about “{causeName(cause)}”{" "}
      <button type="button" class="link-button" onClick={() => chooseCause(null)}>
        Show all
      </button>
    </span>
  );
}

interface Shared {
  report: Report;
  fullShare: number;
  canCombine: boolean;
  captureId: string;
}

function Refined({ of, refined, shared }: Pick<Branch, "refined"> & { of: string; shared: Shared }): JSX.Element {
  const [isWhole, setWhole] = useFlag(`more.${of}`);
  const shown =
    isWhole || refined.length <= SHORT_REFINED + 1
      ? refined
      : refined.filter(({ id }, index) => index < SHORT_REFINED || chosenFinding.value === id);
  return (
    <ul class="refined" aria-label="More specific findings">
      {shown.map(({ id, finding }) => (
        <li key={id}>
          <Finding id={id} finding={finding} isRefined {...shared} />
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
