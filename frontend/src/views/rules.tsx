// All rules: what each looks for, and what became of it in the capture that is shown.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { type RuleInfo, fetchRules } from "../api";
import { formatCount, formatPlural } from "../format";
import type { Outcome } from "../report";
import { report, showFinding } from "../state";
import { asSentence, asWords } from "../text";
import { Fetched } from "./fetched";
import { CheckIcon, ChevronIcon, MinusIcon, WarningIcon } from "./icons";
import { PreviewBadge } from "./preview";
import { Prose } from "./prose";
import { RulePageButton } from "./rule-page";

type Status = Outcome["status"];

const STATUS: Record<Status, [word: string, icon: () => JSX.Element]> = {
  found: ["Found", ChevronIcon],
  passed: ["Passed", CheckIcon],
  not_applicable: ["Not checked", MinusIcon],
  failed: ["Failed to run", WarningIcon],
};
const ORDER: Status[] = ["found", "not_applicable", "passed", "failed"];

/** The categories in the order in which the rules come. */
export function groupByCategory(rules: RuleInfo[]): [category: string, rules: RuleInfo[]][] {
  const groups = new Map<string, RuleInfo[]>();
  for (const rule of rules) groups.set(rule.category, [...(groups.get(rule.category) ?? []), rule]);
  return [...groups];
}

export function Rules(): JSX.Element {
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
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = rules.filter((rule) => {
    const text = [rule.id, rule.title, rule.category, ...rule.needs].join(" ").toLowerCase();
    const isWanted = status === null || outcomes.get(rule.id)?.status === status;
    return isWanted && words.every((word) => text.includes(word));
  });
  const count = (one: Status): number =>
    rules.filter(({ id }) => outcomes.get(id)?.status === one).length;
  return (
    <>
      <header class="headline">
        <h1>{formatPlural(rules.length, "rule")}, each with its limits and remedies</h1>
        <p class="subline">
          <span>What is looked for, and what came of it in this capture</span>
          <span>preview: not seen yet on a profile of a real program</span>
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
          <div class="segments" role="group" aria-label="What came of it">
            <button type="button" aria-pressed={status === null} onClick={() => setStatus(null)}>
              All
            </button>
            {ORDER.filter((one) => count(one) > 0).map((one) => (
              <button key={one} type="button" aria-pressed={status === one} onClick={() => setStatus(one)}>
                {STATUS[one][0]} <span class="count">{formatCount(count(one))}</span>
              </button>
            ))}
          </div>
        )}
        <span class="visually-hidden" role="status">
          {formatPlural(shown.length, "rule")} shown
        </span>
      </div>
      {shown.length === 0 && <p class="muted">No rule has these words.</p>}
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

/** What a rule would need to say anything, and how to record it. */
function Gap({ outcome: { missing, reason } }: { outcome: Outcome }): JSX.Element {
  // Two signals may be missing for the same reason, which is said once.
  const gaps = new Map(missing.map((one) => [`${one.reason}\n${one.remedy}`, one]));
  return (
    <div class="rule-gap">
      {[...gaps.values()].map((one) => (
        <p key={one.signal}>
          <Prose text={asSentence(one.reason)} />{" "}
          <span class="muted">
            <Prose text={one.remedy} />
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
