// The rules without findings: passed, not applicable, failed.
import type { JSX } from "preact";
import { formatPlural } from "../../format";
import type { Missing, Outcome } from "../../report";
import { asWords } from "../../text";
import { Fold } from "../../widgets/fold";
import { CheckIcon, MinusIcon, WarningIcon } from "../../widgets/icons";
import { Prose } from "../../widgets/prose";

interface Gap {
  missing: Missing;
  ruleIds: string[];
}

/** Groups outcomes by missing signal, as many rules can lack the same one. */
export function groupBySignal(outcomes: Outcome[]): Gap[] {
  const gaps = new Map<string, Gap>();
  for (const { rule_id: ruleId, missing } of outcomes) {
    for (const item of missing) {
      const key = [item.signal, item.reason, item.remedy].join("\n");
      const gap = gaps.get(key) ?? { missing: item, ruleIds: [] };
      gap.ruleIds.push(ruleId);
      gaps.set(key, gap);
    }
  }
  return [...gaps.values()].sort((a, b) => b.ruleIds.length - a.ruleIds.length);
}

export function Checks({ outcomes }: { outcomes: Outcome[] }): JSX.Element | null {
  const of = (status: Outcome["status"]): Outcome[] =>
    outcomes.filter((outcome) => outcome.status === status);
  const [failed, notApplicable, passed] = [of("failed"), of("not_applicable"), of("passed")];
  if (failed.length + notApplicable.length + passed.length === 0) return null;
  const unexplained = notApplicable.filter(({ missing }) => missing.length === 0);
  return (
    <section aria-labelledby="checks">
      <div class="section-head">
        <h2 id="checks">Other checks</h2>
      </div>
      <div class="card folds">
        {failed.length > 0 && (
          <Fold icon={<WarningIcon />} tone="failed" title={`${formatPlural(failed.length, "check")} failed to run`}>
            <p class="muted">A bug in Perf Advisor, not in your program. The other checks ran.</p>
            <RuleList outcomes={failed} />
          </Fold>
        )}
        {notApplicable.length > 0 && (
          <Fold
            icon={<MinusIcon />}
            tone="not-applicable"
            title={`${formatPlural(notApplicable.length, "check")} not applicable`}
          >
            <ul class="gaps">
              {groupBySignal(notApplicable).map(({ missing, ruleIds }) => (
                <li key={missing.signal + missing.reason}>
                  <p>
                    <strong>{asWords(missing.signal)}</strong>: <Prose text={missing.reason} />
                  </p>
                  {missing.remedy && (
                    <p>
                      <Prose text={missing.remedy} />
                    </p>
                  )}
                  <p class="muted rule-ids">
                    Needed by {ruleIds.map((id) => <code key={id}>{id}</code>)}
                  </p>
                </li>
              ))}
            </ul>
            {unexplained.length > 0 && <RuleList outcomes={unexplained} />}
          </Fold>
        )}
        {passed.length > 0 && (
          <Fold icon={<CheckIcon />} tone="passed" title={`${formatPlural(passed.length, "check")} passed`}>
            <RuleList outcomes={passed} />
          </Fold>
        )}
      </div>
    </section>
  );
}

function RuleList({ outcomes }: { outcomes: Outcome[] }): JSX.Element {
  return (
    <ul class="rule-list">
      {outcomes.map(({ rule_id: ruleId, reason }) => (
        <li key={ruleId}>
          <code>{ruleId}</code>
          {reason && (
            <span class="muted">
              <Prose text={reason} />
            </span>
          )}
        </li>
      ))}
    </ul>
  );
}
