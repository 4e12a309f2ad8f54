// A table of events, and the timeline around the selected one.
import type { JSX } from "preact";
import { formatDuration } from "../format";
import type { EventsEvidence } from "../report";
import { Below, useNumber } from "../state/linked";
import { Name } from "../widgets/name";
import { More, useShortList } from "../widgets/plain-table";
import { ScrollBox } from "../widgets/scroll-box";
import { Timeline } from "../timeline/timeline";

interface Props {
  evidence: EventsEvidence;
  captureId: string;
  /** The index of the finding in the report. */
  findingIndex: number;
  /** Whether the timeline of the first event would repeat one above. A click on an event shows its own. */
  isRepeated: boolean;
}

/** The rows before and after the selected one, in order of time. */
function neighbors(rows: EventsEvidence["rows"], selected: number): [number | undefined, number | undefined] {
  const order = [...rows.keys()].sort(
    (a, b) => (rows[a]?.start_ns ?? 0) - (rows[b]?.start_ns ?? 0) || a - b,
  );
  const position = order.indexOf(selected);
  return [order[position - 1], order[position + 1]];
}

export function EventTable({ evidence, captureId, findingIndex, isRepeated }: Props): JSX.Element {
  const { rows } = evidence;
  const [chosen, select] = useNumber("event", -1);
  // The first event shows its timeline by itself, unless one above shows the same.
  const selected = rows[chosen] ? chosen : isRepeated ? null : 0;
  const short = useShortList("all", rows);
  const row = selected === null ? undefined : rows[selected];
  const hasSteps = rows.some(({ step }) => step !== null);
  // Where it is not the duration that a wait or a launch costs, the order is that of another number.
  const hasCosts = rows.some(({ cost_ns: cost, duration_ns: ns }) => cost != null && cost !== ns);
  const hasSources = rows.some(({ source }) => source !== null);
  return (
    <>
      {row && selected !== null && (
        <Below name="event">
          <Timeline
            captureId={captureId}
            findings={[findingIndex]}
            neighbors={neighbors(rows, selected)}
            select={select}
            worker={row.worker}
            focus={{ startNs: row.start_ns, durationNs: row.duration_ns, name: row.name }}
          />
        </Below>
      )}
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
              <tr key={index} class={index === selected ? "chosen" : ""}>
                <td class="text">
                  <button
                    type="button"
                    class="event-button"
                    aria-pressed={index === selected}
                    title={`Show ${event.name} on the timeline`}
                    onClick={() => select(index)}
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
    </>
  );
}
