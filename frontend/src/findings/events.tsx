// A table of events: choosing one shows it on the timeline.
import type { JSX } from "preact";
import { formatDuration } from "../format";
import type { EventsEvidence } from "../report";
import { Name } from "../widgets/name";
import { More, useShortList } from "../widgets/plain-table";
import { ScrollBox } from "../widgets/scroll-box";

interface Props {
  evidence: EventsEvidence;
  /** The row that is chosen. */
  chosen: number | null;
  choose(row: number | null): void;
}

export function EventTable({ evidence, chosen, choose }: Props): JSX.Element {
  const { rows } = evidence;
  const short = useShortList("all", rows);
  const hasSteps = rows.some(({ step }) => step !== null);
  // Where it is not the duration that a wait or a launch costs, the order is that of another number.
  const hasCosts = rows.some(({ cost_ns: cost, duration_ns: ns }) => cost != null && cost !== ns);
  const hasSources = rows.some(({ source }) => source !== null);
  return (
    <ScrollBox role="region" label={evidence.title}>
      <table>
        <thead>
          <tr>
            <th scope="col" class="text">Event</th>
            {hasCosts && <th scope="col" class="number">Costs</th>}
            <th scope="col" class="number">Duration</th>
            <th scope="col" class="number">Start</th>
            {hasSteps && <th scope="col" class="number">Step</th>}
            <th scope="col" class="text">Track</th>
            {hasSources && <th scope="col" class="text">Source</th>}
          </tr>
        </thead>
        <tbody>
          {short.rows.map((event, index) => (
            <tr key={index} class={index === chosen ? "chosen" : ""}>
              <td class="text">
                <button
                  type="button"
                  class="event-button"
                  aria-pressed={index === chosen}
                  title={`Show ${event.name} on the timeline`}
                  onClick={() => choose(index === chosen ? null : index)}
                >
                  <Name of={event.name} />
                </button>
              </td>
              {hasCosts && <td class="number">{event.cost_ns == null ? "–" : formatDuration(event.cost_ns)}</td>}
              <td class="number">{formatDuration(event.duration_ns)}</td>
              <td class="number">{formatDuration(event.start_ns)}</td>
              {hasSteps && <td class="number">{event.step ?? "–"}</td>}
              <td class="text"><Name of={event.track} /></td>
              {hasSources && <td class="text"><code><Name of={event.source ?? "–"} /></code></td>}
            </tr>
          ))}
        </tbody>
      </table>
      <More of={short} truncated={evidence.truncated} />
    </ScrollBox>
  );
}
