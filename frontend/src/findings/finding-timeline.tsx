// A finding on the timeline: the step in which it costs time, or the event of its evidence that is chosen.
import type { JSX } from "preact";
import { analyzedPlace } from "../finding-ids";
import type { EventsEvidence, FindingInfo, Report } from "../report";
import { Below, useLinked } from "../state/linked";
import { hasTimeline } from "../timeline/has-timeline";
import type { Focus } from "../timeline/range";
import { Timeline } from "../timeline/timeline";

type Item = FindingInfo["evidence"][number];

/** A row of a piece of evidence, by their places. */
export interface ChosenEvent {
  item: number;
  row: number;
}

/** The event of a finding's evidence that is chosen, if one is; below the finding's name. */
export function useChosenEvent(): [chosen: ChosenEvent | null, choose: (event: ChosenEvent | null) => void] {
  const [text, setText] = useLinked("event");
  const [, item, row] = /^(\d+)-(\d+)$/.exec(text) ?? [];
  return [
    row === undefined ? null : { item: Number(item), row: Number(row) },
    (event) => setText(event ? `${event.item}-${event.row}` : ""),
  ];
}

interface Stretch {
  worker: number;
  focus: Focus;
}

function stretchOf(item: Item | undefined, row: number): Stretch | null {
  if (item?.kind === "span") {
    return { worker: item.worker, focus: { startNs: item.start_ns, durationNs: item.end_ns - item.start_ns, name: item.title } };
  }
  const event = item?.kind === "events" ? item.rows[row] : undefined;
  return event ? { worker: event.worker, focus: { startNs: event.start_ns, durationNs: event.duration_ns, name: event.name } } : null;
}

/** What a finding without time of its own is about: the first stretch of its evidence. */
const firstStretch = ({ saving, bounds, evidence }: FindingInfo): Stretch | null =>
  saving || bounds ? null : evidence.reduce<Stretch | null>((found, item) => found ?? stretchOf(item, 0), null);

/** Whether the timeline shows what proves a finding. */
export const isOnTimeline = (report: Report, finding: FindingInfo): boolean =>
  hasTimeline(report) && Boolean(finding.saving ?? finding.bounds ?? firstStretch(finding));

interface Props {
  finding: FindingInfo;
  report: Report;
  captureId: string;
}

/** Below the finding's name. */
export function FindingTimeline({ finding, report, captureId }: Props): JSX.Element {
  const [chosen, choose] = useChosenEvent();
  const item = chosen ? finding.evidence[chosen.item] : undefined;
  const stretch = (chosen && stretchOf(item, chosen.row)) ?? firstStretch(finding);
  return (
    <Below name="event">
      <Timeline
        captureId={captureId}
        findings={[analyzedPlace(report.findings, finding)]}
        worker={stretch?.worker ?? report.reference_worker}
        {...(stretch ? { focus: stretch.focus } : {})}
        {...(chosen ? { goBack: () => choose(null) } : {})}
        {...(chosen && item?.kind === "events"
          ? { neighbors: neighbors(item.rows, chosen.row), select: (row: number) => choose({ ...chosen, row }) }
          : {})}
      />
    </Below>
  );
}

/** The rows before and after the chosen one, in order of time. */
function neighbors(rows: EventsEvidence["rows"], chosen: number): [number | undefined, number | undefined] {
  const order = [...rows.keys()].sort((a, b) => (rows[a]?.start_ns ?? 0) - (rows[b]?.start_ns ?? 0) || a - b);
  const position = order.indexOf(chosen);
  return [order[position - 1], order[position + 1]];
}
