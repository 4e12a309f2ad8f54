// The event that is chosen on a timeline, in words that screen readers announce.
import type { JSX } from "preact";
import { analyzedPlace, findingIds } from "../finding-ids";
import type { Report } from "../report";
import type { EventInfo } from "../state/answers";
import { openFinding } from "../state/store";
import { CloseButton } from "../widgets/close-button";
import { Name } from "../widgets/name";
import { factsOf, factsOfBox } from "./event-facts";
import type { Hit } from "./plane";

interface Props {
  /** As the server describes it. */
  event: EventInfo | null;
  /** The box that it is in. */
  hit: Hit | null;
  pick: number;
  report: Report | null;
  fit(): void;
  close(): void;
}

export function ChosenEvent({ event, hit, pick, report, fit, close }: Props): JSX.Element {
  const at = hit ? ((hit.picture.startNs[hit.box] ?? 0) + (hit.picture.endNs[hit.box] ?? 0)) / 2 : 0;
  const known = event?.event === pick ? event : null;
  const facts = !hit ? null : known ? factsOf(known, hit.picture, at, report) : factsOfBox(hit.picture, hit.box, at, report);
  const findings = report?.findings ?? [];
  const ids = findingIds(findings);
  return (
    <div class="timeline-chosen" role="status">
      {pick >= 0 && facts && (
        <>
          <div class="timeline-chosen-head">
            <strong>
              <Name of={facts.name} />
            </strong>
            <span>{facts.time}</span>
            <button type="button" onClick={fit}>
              Zoom to it
            </button>
            <CloseButton label="Close the event" onClick={close} />
          </div>
          <dl>
            {facts.details.map(([label, value]) => (
              <div key={label}>
                <dt>{label}</dt>
                <dd>{label === "Source" ? <code>{value}</code> : value}</dd>
              </div>
            ))}
            {findings.filter((finding) => facts.findings.includes(analyzedPlace(findings, finding))).map((finding) => (
              <div key={finding.rule_id}>
                <dt>Finding</dt>
                <dd>
                  <button type="button" class="link-button" onClick={() => openFinding(ids[findings.indexOf(finding)] ?? "")}>
                    {finding.title}
                  </button>
                </dd>
              </div>
            ))}
          </dl>
        </>
      )}
    </div>
  );
}
