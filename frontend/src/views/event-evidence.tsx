// Events of the trace, and the time line around one of them.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { formatDuration } from "../format";
import type { EventsEvidence } from "../report";
import { Name } from "./name";
import { More, useShort } from "./table";
import { Timeline } from "./timeline";

interface Props {
  evidence: EventsEvidence;
  captureId: string;
  /** Where the finding stands in the report. */
  place: number;
}

/** The rows beside one in time: what came before it, and what comes after. */
function neighbors(rows: EventsEvidence["rows"], chosen: number): [number | undefined, number | undefined] {
  const order = [...rows.keys()].sort(
    (a, b) => (rows[a]?.start_ns ?? 0) - (rows[b]?.start_ns ?? 0) || a - b,
  );
  const place = order.indexOf(chosen);
  return [order[place - 1], order[place + 1]];
}

export function EventEvidence({ evidence, captureId, place }: Props): JSX.Element {
  const [chosen, choose] = useState(0);
  const { rows } = evidence;
  const short = useShort(rows);
  const row = rows[chosen];
  const hasSteps = rows.some(({ step }) => step !== null);
  const hasSources = rows.some(({ source }) => source !== null);
  return (
    <>
      {row && (
        <Timeline
          captureId={captureId}
          place={place}
          occurrences={{ beside: neighbors(rows, chosen), choose }}
          worker={row.worker}
          focus={{ startNs: row.start_ns, durationNs: row.duration_ns, name: row.name }}
        />
      )}
      <div class="table-scroll" role="region" aria-label={evidence.title} tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col" class="text">Event</th>
              <th scope="col" class="number">Duration</th>
              <th scope="col" class="number">At</th>
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
                    title={`${event.name}: show on the time line`}
                    onClick={() => choose(index)}
                  >
                    <Name of={event.name} />
                  </button>
                </td>
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
      </div>
    </>
  );
}
