// The rules without findings: what passed, what another recording would let run, and what failed.
import type { JSX } from "preact";
import { formatPlural } from "../../format";
import type { Outcome, Report } from "../../report";
import { asSentence } from "../../text";
import { Fold } from "../../widgets/fold";
import { CheckIcon, MinusIcon, WarningIcon } from "../../widgets/icons";
import { Prose } from "../../widgets/prose";

export function Checks({ report }: { report: Report }): JSX.Element | null {
  const { outcomes, not_checked: gaps } = report;
  const of = (status: Outcome["status"]): Outcome[] =>
    outcomes.filter((outcome) => outcome.status === status);
  const [failed, notApplicable, passed] = [of("failed"), of("not_applicable"), of("passed")];
  if (failed.length + notApplicable.length + passed.length === 0) return null;
  const recordable = new Set(gaps.flatMap(({ rule_ids: ids }) => ids));
  const unconcerned = notApplicable.length - recordable.size;
  return (
    <section aria-labelledby="checks">
      <div class="section-head">
        <h2 id="checks">Other checks</h2>
      </div>
      <div class="card folds">
        {failed.length > 0 && (
          <Fold name="failed" icon={<WarningIcon />} tone="failed" title={`${formatPlural(failed.length, "check")} failed to run`}>
            <p class="muted">A bug in Perf Advisor, not in your program. The other checks ran.</p>
            <RuleList outcomes={failed} />
          </Fold>
        )}
        {gaps.length > 0 && (
          <Fold
            name="not-applicable"
            icon={<MinusIcon />}
            tone="not-applicable"
            title={`${formatPlural(recordable.size, "more check")} with another recording`}
          >
            <ul class="gaps">
              {gaps.map(({ reasons, remedy, rule_ids: ruleIds }) => (
                <li key={remedy}>
                  <p>
                    <strong>
                      <Prose text={remedy} />
                    </strong>
                  </p>
                  <p>
                    <Prose text={reasons.map(asSentence).join(" ")} />
                  </p>
                  <p class="muted rule-ids">
                    Needed by {ruleIds.map((id) => <code key={id}>{id}</code>)}
                  </p>
                </li>
              ))}
            </ul>
          </Fold>
        )}
        {passed.length > 0 && (
          <Fold name="passed" icon={<CheckIcon />} tone="passed" title={`${formatPlural(passed.length, "check")} passed`}>
            <RuleList outcomes={passed} />
          </Fold>
        )}
        {unconcerned > 0 && (
          <p class="muted checks-unconcerned">
            {formatPlural(unconcerned, "other check")} cannot concern this program.
          </p>
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
