// An exported page has no server: it carries the answers of the routes.
import type { EventWindow } from "./answers";

type Answers = Record<string, unknown>;
/** The events around a finding's first evidence, written by `report/timeline/embedded.py`. */
type Timeline = EventWindow & { finding: number };

/** Answers by route, written by `report/formats/html.py`; null in TensorBoard. */
function readAnswers(): Answers | null {
  const block = globalThis.document?.getElementById("perf-advisor-answers");
  return block ? (JSON.parse(block.textContent ?? "") as Answers) : null;
}

const ANSWERS = readAnswers();

export const isExported = ANSWERS !== null;

const REPORT_ONLY = "This exported page contains only the report";
const FIRST_EVENTS_ONLY = "This exported page contains only the events around the first evidence";

/** What a server would answer for a URL below `api/v1/`. */
export function answerFromPage(url: string, answers: Answers | null = ANSWERS): Response {
  const { pathname, searchParams } = new URL(url);
  const route = decodeURIComponent(pathname.split("/api/v1/")[1] ?? "");
  if (answers && Object.hasOwn(answers, route)) return Response.json(answers[route]);
  const capture = /^(captures\/[^/]+)\/window$/.exec(route)?.[1];
  const timelines = capture === undefined ? undefined : answers?.[`${capture}/views/timelines`];
  const window = timelines && cutWindow(timelines as Timeline[], searchParams);
  if (window) return Response.json(window);
  const message = capture === undefined ? REPORT_ONLY : FIRST_EVENTS_ONLY;
  const hint = "Open the log folder in TensorBoard to see everything.";
  return Response.json({ error: { message, hint } }, { status: 404 });
}

const clip = (claims: EventWindow["claims"], from: number, to: number): EventWindow["claims"] =>
  claims
    .filter(([start, end]) => start < to && end > from)
    .map(([start, end]) => [Math.max(start, from), Math.min(end, to)]);

/** The requested part of the shortest timeline that covers it. */
function cutWindow(timelines: Timeline[], query: URLSearchParams): EventWindow | undefined {
  const read = (key: string): number => Number(query.get(key));
  const [worker, finding, from, to] = [read("worker"), read("finding"), read("from_ns"), read("to_ns")];
  const length = ({ from_ns: start, to_ns: end }: Timeline): number => end - start;
  const [timeline] = timelines
    .filter((candidate) => candidate.worker === worker && candidate.from_ns <= from && candidate.to_ns >= to)
    // Any finding's timeline has the events, but only the finding's own has its claims.
    .sort((a, b) => Number(b.finding === finding) - Number(a.finding === finding) || length(a) - length(b));
  return (
    timeline && {
      ...timeline,
      from_ns: from,
      to_ns: to,
      events: timeline.events.filter(({ start_ns: start, duration_ns: duration }) => start < to && start + duration > from),
      claims: timeline.finding === finding ? clip(timeline.claims, from, to) : [],
    }
  );
}
