// All rules, and their outcomes in the selected capture.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { RuleInfo } from "../state/answers";
import { fetchRules } from "../state/api";
import { formatCount, formatPlural } from "../format";
import type { Outcome } from "../report";
import { report, showFinding } from "../state/store";
import { asSentence, asWords, matchesQuery } from "../text";
import { Fetched } from "../widgets/fetched";
import { CheckIcon, ChevronIcon, MinusIcon, WarningIcon } from "../widgets/icons";
import { PreviewBadge } from "../findings/preview-badge";
import { Prose } from "../widgets/prose";
import { RulePageButton } from "../findings/rule-dialog";

type Status = Outcome["status"];

const STATUS: Record<Status, [word: string, icon: () => JSX.Element]> = {
  found: ["Found", ChevronIcon],
  passed: ["Passed", CheckIcon],
  not_applicable: ["Not applicable", MinusIcon],
  failed: ["Failed to run", WarningIcon],
};
const ORDER: Status[] = ["found", "not_applicable", "passed", "failed"];

/** The rules by category, in their order. */
function groupByCategory(rules: RuleInfo[]): [category: string, rules: RuleInfo[]][] {
  const groups = new Map<string, RuleInfo[]>();
  for (const rule of rules) groups.set(rule.category, [...(groups.get(rule.category) ?? []), rule]);
  return [...groups];
}

export function RulesPage(): JSX.Element {
  return (
    <Fetched of="rules" fetch={fetchRules}>
      {(rules) => <Catalog rules={rules} />}
    </Fetched>
  );
}

function Catalog({ rules }: { rules: RuleInfo[] }): JSX.Element {
  const [query, setQuery] = useState("");
  const [status, setStatus] = useState<Status | null>(null);
  const outcomes = new Map(
    report.value.state === "ready"
      ? report.value.value.outcomes.map((outcome) => [outcome.rule_id, outcome])
      : [],
  );
  const shown = rules.filter((rule) => {
    const hasStatus = status === null || outcomes.get(rule.id)?.status === status;
    return hasStatus && matchesQuery([rule.id, rule.title, rule.category, ...rule.needs].join(" "), query);
  });
  const count = (outcome: Status): number =>
    rules.filter(({ id }) => outcomes.get(id)?.status === outcome).length;
  return (
    <>
      <header class="headline">
        <h1>{formatPlural(rules.length, "rule")}</h1>
        <p class="subline">
          <span>What each rule looks for, and its outcome in this capture</span>
          <span>preview: has not yet fired on a profile of a real program</span>
        </p>
      </header>
      <div class="filters">
        <input
          type="search"
          aria-label="Find a rule"
          placeholder="Find a rule"
          value={query}
          onInput={({ currentTarget }) => setQuery(currentTarget.value)}
        />
        {outcomes.size > 0 && (
          <div class="segments" role="group" aria-label="Filter by outcome">
            <button type="button" aria-pressed={status === null} onClick={() => setStatus(null)}>
              All
            </button>
            {ORDER.filter((outcome) => count(outcome) > 0).map((outcome) => (
              <button key={outcome} type="button" aria-pressed={status === outcome} onClick={() => setStatus(outcome)}>
                {STATUS[outcome][0]} <span class="count">{formatCount(count(outcome))}</span>
              </button>
            ))}
          </div>
        )}
        <span class="visually-hidden" role="status">
          {formatPlural(shown.length, "rule")} shown
        </span>
      </div>
      {shown.length === 0 && <p class="muted">No matching rules.</p>}
      {groupByCategory(shown).map(([category, members]) => (
        <section key={category} aria-labelledby={`rules-${category}`}>
          <div class="section-head">
            <h2 id={`rules-${category}`}>{categoryName(category)}</h2>
            <span class="muted">{formatCount(members.length)}</span>
          </div>
          <ul class="card rules">
            {members.map((rule) => (
              <Rule key={rule.id} rule={rule} outcome={outcomes.get(rule.id)} />
            ))}
          </ul>
        </section>
      ))}
    </>
  );
}

const categoryName = (category: string): string =>
  category === "xla" ? "XLA" : asWords(category);

function Rule({ rule, outcome }: { rule: RuleInfo; outcome: Outcome | undefined }): JSX.Element {
  return (
    <li class="rule">
      <div class="rule-main">
        <h3>
          <Prose text={rule.title} />
          {rule.is_preview && <> <PreviewBadge /></>}
        </h3>
        <p class="muted rule-facts">
          <code>{rule.id}</code>
          {rule.refines && (
            <span>
              refines <code>{rule.refines}</code>
            </span>
          )}
        </p>
        {outcome?.status === "not_applicable" && <Gap outcome={outcome} />}
        {outcome?.status === "failed" && outcome.reason && <p class="muted"><Prose text={outcome.reason} /></p>}
      </div>
      <div class="rule-side">
        {outcome && <OutcomeMark status={outcome.status} />}
        {outcome?.status === "found" && (
          <button type="button" onClick={() => showFinding(rule.id)}>
            Show
          </button>
        )}
        <RulePageButton ruleId={rule.id} />
      </div>
    </li>
  );
}

/** What a rule needs but the capture lacks, and how to record it. */
function Gap({ outcome: { missing, reason } }: { outcome: Outcome }): JSX.Element {
  // Signals missing for the same reason are listed once.
  const gaps = new Map(missing.map((gap) => [`${gap.reason}\n${gap.remedy}`, gap]));
  return (
    <div class="rule-gap">
      {[...gaps.values()].map((gap) => (
        <p key={gap.signal}>
          <Prose text={asSentence(gap.reason)} />{" "}
          <span class="muted">
            <Prose text={gap.remedy} />
          </span>
        </p>
      ))}
      {missing.length === 0 && reason && (
        <p class="muted">
          <Prose text={asSentence(reason)} />
        </p>
      )}
    </div>
  );
}

function OutcomeMark({ status }: { status: Status }): JSX.Element {
  const [word, Mark] = STATUS[status];
  return (
    <span class={`outcome outcome-${status}`}>
      <Mark /> {word}
    </span>
  );
}
