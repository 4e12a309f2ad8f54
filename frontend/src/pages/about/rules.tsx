// All rules, beginning with those that found something in the selected capture, and each rule's page.
import type { ComponentChildren, JSX } from "preact";
import { PreviewBadge } from "../../findings/preview-badge";
import { formatCount, formatPlural } from "../../format";
import type { Outcome, Report } from "../../report";
import type { RuleInfo, RulePage as Page } from "../../state/answers";
import { fetchRule } from "../../state/api";
import { useLinked } from "../../state/linked";
import { pageLink, report, ruleLink, selectedId } from "../../state/store";
import { asSentence, asWords, describeSaving } from "../../text";
import { Fetched } from "../../widgets/fetched";
import { Head } from "../../widgets/head";
import { CheckIcon, LeftIcon, MinusIcon, WarningIcon } from "../../widgets/icons";
import { Loading } from "../../widgets/loading";
import { PageLink } from "../../widgets/page-link";
import { Markdown, Prose } from "../../widgets/prose";
import { Segments } from "../../widgets/segments";
import { type Column, SortableTable } from "../../widgets/sortable-table";

type Status = Outcome["status"];

const STATUS: Record<Status, [word: string, icon: (() => JSX.Element) | null]> = {
  found: ["Found", null],
  failed: ["Failed to run", WarningIcon],
  passed: ["Passed", CheckIcon],
  not_applicable: ["Not applicable", MinusIcon],
};
const ORDER = Object.keys(STATUS) as Status[];

/** The report on screen; null if there is none. */
function currentReport(): Report | null {
  return selectedId.value !== null && report.value.state === "ready" ? report.value.value : null;
}

interface Row {
  rule: RuleInfo;
  status: Status | null;
  /** The largest share that a finding of the rule saves. */
  savesShare: number | null;
  /** The place of its first finding in the report; after all findings if it has none. */
  rank: number;
}

function readRows(rules: RuleInfo[], current: Report | null): Row[] {
  const outcomes = new Map(current?.outcomes.map(({ rule_id: id, status }) => [id, status]));
  const findings = current?.findings ?? [];
  const rows = rules.map((rule) => {
    const rank = findings.findIndex(({ rule_id: id }) => id === rule.id);
    return {
      rule,
      status: outcomes.get(rule.id) ?? null,
      savesShare: findings[rank]?.saving?.share_expected ?? null,
      rank: rank < 0 ? findings.length : rank,
    };
  });
  const order = ({ status }: Row): number => (status === null ? 0 : ORDER.indexOf(status));
  return rows.sort((a, b) => order(a) - order(b) || a.rank - b.rank);
}

const RULE: Column<Row> = {
  key: "rule",
  label: "Rule",
  unit: null,
  value: ({ rule }) => rule.title,
  render: ({ rule }) => (
    <>
      <PageLink class="rule-title" to={ruleLink(rule.id)}>
        <Prose text={rule.title} />
      </PageLink>
      {rule.is_preview && <> <PreviewBadge /></>}
    </>
  ),
};

const ID: Column<Row> = {
  key: "id",
  label: "Id",
  unit: null,
  value: ({ rule }) => rule.id,
  render: ({ rule }) => <code>{rule.id}</code>,
};

const CATEGORY: Column<Row> = {
  key: "category",
  label: "Category",
  unit: null,
  value: ({ rule }) => categoryName(rule.category),
};

const OUTCOME: Column<Row> = {
  key: "outcome",
  label: "Outcome",
  unit: null,
  value: ({ status }) => status && STATUS[status][0],
  order: ({ status }) => status && ORDER.indexOf(status),
  render: ({ status, rule }) => {
    if (status === "found") return <FindingLink ruleId={rule.id}>Found</FindingLink>;
    return status === null ? "–" : <OutcomeMark status={status} />;
  },
};

const SAVES: Column<Row> = { key: "saves", label: "Saves", unit: "share", value: ({ savesShare: share }) => share };

const categoryName = (category: string): string => (category === "xla" ? "XLA" : asWords(category));

export function Rules({ rules }: { rules: RuleInfo[] }): JSX.Element {
  const [chosen, choose] = useLinked("outcome");
  const status = ORDER.find((name) => name === chosen) ?? null;
  const current = currentReport();
  const rows = readRows(rules, current);
  const shown = status === null ? rows : rows.filter((row) => row.status === status);
  const count = (outcome: Status): number => rows.filter((row) => row.status === outcome).length;
  return (
    <section class="rules" aria-labelledby="rules">
      <div class="section-head">
        <h2 id="rules">What is checked: {formatPlural(rules.length, "rule")}</h2>
        <span class="muted">
          {current && `with the outcome in ${current.run || "this capture"}; `}preview: has not yet fired on a profile of a real
          program
        </span>
      </div>
        {current && (
          <Segments
            label="Filter by outcome"
            options={[
              ["", "All"],
              ...ORDER.filter((outcome) => count(outcome) > 0).map((outcome): [string, ComponentChildren] => [
                outcome,
                <>
                  {STATUS[outcome][0]} <span class="count">{formatCount(count(outcome))}</span>
                </>,
              ]),
            ]}
            chosen={status ?? ""}
            choose={choose}
          />
        )}
        <SortableTable
          caption="Rules"
          columns={current ? [RULE, OUTCOME, SAVES, CATEGORY, ID] : [RULE, CATEGORY, ID]}
          rows={shown}
          filterLabel="Find a rule"
        />
    </section>
  );
}

function FindingLink({ ruleId, children }: { ruleId: string; children: string }): JSX.Element {
  return (
    <PageLink class="outcome outcome-found" to={{ ...pageLink("report"), finding: ruleId }}>
      {children}
    </PageLink>
  );
}

function OutcomeMark({ status }: { status: Status }): JSX.Element {
  const [word, Mark] = STATUS[status];
  return (
    <span class={`outcome outcome-${status}`}>
      {Mark && <Mark />} {word}
    </span>
  );
}

export function RulePage({ id }: { id: string }): JSX.Element {
  // The report adds the outcome: wait for it, unless it has yet to be made, so that nothing moves.
  if (selectedId.value !== null && report.value.state === "loading") return <Loading />;
  return (
    <Fetched of={id} fetch={() => fetchRule(id)}>
      {(page) => <RuleOf page={page} />}
    </Fetched>
  );
}

/** What a rule looks for and why, and its outcome in the selected capture. */
function RuleOf({ page: { id, title, page } }: { page: Page }): JSX.Element {
  const current = currentReport();
  const outcome = current?.outcomes.find(({ rule_id: other }) => other === id);
  return (
    <article class="rule-page">
      <PageLink class="back-link" to={pageLink("about")}>
        <LeftIcon /> All rules
      </PageLink>
      <Head title={<Prose text={title} />} facts={[<code>{id}</code>]} />
      {current && outcome && <InCapture outcome={outcome} report={current} />}
      <Markdown text={withoutTitle(page)} />
    </article>
  );
}

/** Removes the heading and the title, which the page already shows. */
const withoutTitle = (page: string): string => page.replace(/^\s*# .*\n+(?:\*\*[^*]+\*\* )?/, "");

function InCapture({ outcome, report }: { outcome: Outcome; report: Report }): JSX.Element {
  const found = report.findings.filter(({ rule_id: id }) => id === outcome.rule_id);
  // Signals missing for the same reason are listed once.
  const missing = report.missing_signals.filter(({ signal }) => outcome.missing?.includes(signal));
  const gaps = new Map(missing.map((gap) => [`${gap.reason}\n${gap.remedy}`, gap]));
  return (
    <section class="card in-capture" aria-label="In this capture">
      {found.length === 0 && (
        <p>
          <span class="muted">In this capture:</span> <OutcomeMark status={outcome.status} />
        </p>
      )}
      {found.map(({ title, rule_id: id, saving }, index) => (
        <p key={index}>
          <span class="muted">Found in this capture:</span>{" "}
          <PageLink to={{ ...pageLink("report"), finding: index === 0 ? id : `${id}~${index + 1}` }}>
            <Prose text={title} />
          </PageLink>
          {saving && <span class="muted">, saves {describeSaving(saving).expected}</span>}
        </p>
      ))}
      {[...gaps.values()].map((gap) => (
        <p key={gap.signal}>
          <Prose text={asSentence(gap.reason)} /> <Prose text={gap.remedy} />
        </p>
      ))}
      {gaps.size === 0 && outcome.reason && (
        <p>
          <Prose text={asSentence(outcome.reason)} />
        </p>
      )}
    </section>
  );
}
