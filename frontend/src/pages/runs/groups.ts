// The order and the groups of the table of runs.
import type { Capture } from "../../state/answers";
import { frameworkName, matchesQuery, sessionName } from "../../text";

export interface Group {
  /** A directory, or a run that was recorded several times. */
  name: string;
  /** The newest first. */
  captures: Capture[];
}

/** A line of the table: a group of several, or a capture that shares its directory with none. */
export type Line = { kind: "group"; group: Group } | { kind: "capture"; capture: Capture };

/** The newest first; those of unknown time last, by name. */
export function newestFirst(captures: readonly Capture[]): Capture[] {
  return [...captures].sort(
    (a, b) => compare(b.recorded, a.recorded) || compare(a.run, b.run) || compare(b.session, a.session),
  );
}

const compare = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0);

/** What a capture is a part of: the recordings of its run, or the directory of the run. */
function groupName({ run, series, recordings }: Capture): string {
  if ((recordings ?? 1) > 1 && series !== undefined) return series;
  const end = run.lastIndexOf("/");
  return end < 0 ? "" : run.slice(0, end);
}

/** Groups captures, each where its newest member is. The root of the log folder is no group. */
export function groupCaptures(ordered: readonly Capture[]): Line[] {
  const groups = new Map<string, Capture[]>();
  const lines: (() => Line)[] = [];
  for (const capture of ordered) {
    const name = groupName(capture);
    const members = name === "" ? undefined : groups.get(name);
    if (members) {
      members.push(capture);
      continue;
    }
    const own = [capture];
    if (name !== "") groups.set(name, own);
    lines.push(() =>
      own.length > 1 ? { kind: "group", group: { name, captures: own } } : { kind: "capture", capture },
    );
  }
  return lines.map((line) => line());
}

/** The captures in whose row each word of a query occurs. */
export function searchCaptures(captures: readonly Capture[], query: string): Capture[] {
  if (query.trim() === "") return [...captures];
  return captures.filter(({ run, session, framework, device, first_change: change, headline }) =>
    matchesQuery(
      [run || ".", sessionName(session), frameworkName(framework), device ?? "", change ?? headline ?? ""].join("\n"),
      query,
    ),
  );
}

/** The step times of a group over time, the oldest first. */
export const stepTimes = ({ captures }: Group): { capture: Capture; ns: number }[] =>
  captures.flatMap((capture) => (capture.step_time_ns === null ? [] : [{ capture, ns: capture.step_time_ns }])).reverse();
