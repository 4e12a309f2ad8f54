// What is known of an event: of the box that it is in, its cause, and the findings about it.
import { formatDuration, formatPlural } from "../format";
import type { EventInfo } from "../state/answers";
import type { Report } from "../report";
import { causeName } from "../text";
import { trackName } from "./layout";
import { type Picture, causesAt, findingsAt, trackOf } from "./picture";

export interface Facts {
  name: string;
  /** Duration, and what else is in the box. */
  time: string;
  /** Each with a label. */
  details: [label: string, value: string][];
  /** By their places in the analysis. */
  findings: number[];
}

/** Where the wait that an event is part of may have several causes, name those with this share. */
const NAMED_SHARE = 0.2;

/** The rank of each worker. */
export const ranksOf = (report: Report | null): (number | null)[] => report?.workers.map(({ rank }) => rank) ?? [];

export function describeTime(picture: Picture, atNs: number): [label: string, value: string][] {
  const causes = causesAt(picture, atNs).filter(([, share]) => share >= NAMED_SHARE);
  return causes.length > 0 ? [["Cause", causes.map(([cause]) => causeName(cause)).join(", ")]] : [];
}

export function factsOfBox(picture: Picture, box: number, atNs: number, report: Report | null): Facts {
  const { boxes, texts, kinds } = picture.answer;
  const count = boxes.count[box] ?? 1;
  const text = (index: number | undefined): string => texts[index ?? -1] ?? "";
  const name = text(boxes.name[box]) || "(no name)";
  const info: EventInfo = {
    event: boxes.event[box] ?? -1,
    row: boxes.row[box] ?? 0,
    start_ns: picture.startNs[box] ?? 0,
    duration_ns: boxes.duration_ns[box] ?? 0,
    kind: kinds[boxes.kind[box] ?? 0] ?? "",
    name,
    module: text(boxes.module[box]),
    line: text(boxes.line[box]),
  };
  const facts = factsOf(info, picture, atNs, report);
  if (count === 1) return facts;
  const busy = formatDuration(boxes.busy_ns[box] ?? 0);
  return { ...facts, name: `${formatPlural(count, "short event")}, such as ${name}`, time: `${busy} together; zoom in to tell them apart` };
}

export function factsOf(event: EventInfo, picture: Picture, atNs: number, report: Report | null): Facts {
  const { tracks } = picture.answer;
  const track = trackOf(tracks, event.row);
  const isInside = picture.fromNs <= atNs && atNs < picture.toNs;
  return {
    name: event.name || "(no name)",
    time: `${formatDuration(event.duration_ns)} at ${formatDuration(event.start_ns)}`,
    details: [
      ["Kind", event.kind.replaceAll("_", " ")],
      ...(track ? [["Track", trackName(track, ranksOf(report))] as [string, string]] : []),
      ...(event.module ? [["Module", event.module] as [string, string]] : []),
      ...(event.line ? [["Source", event.line] as [string, string]] : []),
      ...(isInside ? describeTime(picture, atNs) : []),
    ],
    findings: isInside ? findingsAt(picture, atNs) : [],
  };
}
