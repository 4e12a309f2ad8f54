// The event that is chosen on a timeline, in words that screen readers announce.
import type { JSX } from "preact";
import { analyzedPlace, findingIds } from "../finding-ids";
import type { Report } from "../report";
import type { EventInfo, LinkedEvent } from "../state/answers";
import { formatDuration, formatPlural } from "../format";
import { openFinding } from "../state/store";
import { CloseButton } from "../widgets/close-button";
import { Name } from "../widgets/name";
import { LINK_LABELS } from "./arrows";
import { factsOf, factsOfBox } from "./event-facts";
import type { Picture } from "./picture";
import type { Hit } from "./plane";

interface Props {
  /** As the server describes it. */
  event: EventInfo | null;
  /** What is in view. */
  picture: Picture;
  /** The box that it is in. */
  hit: Hit | null;
  pick: number;
  report: Report | null;
  fit(): void;
  close(): void;
  show(event: EventInfo): void;
}

/** Of the device work of an operator, or the backward nodes. */
const MOST_LINKED = 5;

export function ChosenEvent({ event, picture, hit, pick, report, fit, close, show }: Props): JSX.Element {
  const facts = event
    ? factsOf(event, hit?.picture ?? picture, event.start_ns + event.duration_ns / 2, report)
    : hit && factsOfBox(hit.picture, hit.box, ((hit.picture.startNs[hit.box] ?? 0) + (hit.picture.endNs[hit.box] ?? 0)) / 2, report);
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
            {event?.arguments?.map(([label, value]) => (
              <div key={label}>
                <dt>{label}</dt>
                <dd>
                  <Name of={value} />
                </dd>
              </div>
            ))}
            <Linked events={event?.linked ?? []} show={show} />
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

/** What the event comes from and leads to. */
function Linked({ events, show }: { events: LinkedEvent[]; show(event: EventInfo): void }): JSX.Element {
  const shown = events.filter(({ link }, place) => place - events.findIndex((other) => other.link === link) < MOST_LINKED);
  return (
    <>
      {shown.map((other) => (
        <div key={other.event}>
          <dt>{LINK_LABELS[other.link]}</dt>
          <dd>
            <button type="button" class="link-button" onClick={() => show(other)}>
              <Name of={other.name || "(no name)"} />
            </button>{" "}
            {formatDuration(other.duration_ns)}
          </dd>
        </div>
      ))}
      {events.length > shown.length && (
        <div>
          <dt>Also</dt>
          <dd>{formatPlural(events.length - shown.length, "linked event")}</dd>
        </div>
      )}
    </>
  );
}
