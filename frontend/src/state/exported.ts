// An exported page has no server: it carries the answers of the routes.
import type { EventWindow } from "./answers";

type Answers = Record<string, unknown>;

/** Answers by route, written by `report/formats/html.py`; null in TensorBoard. */
function readAnswers(): Answers | null {
  const block = globalThis.document?.getElementById("perf-advisor-answers");
  return block ? (JSON.parse(block.textContent ?? "") as Answers) : null;
}

const ANSWERS = readAnswers();

export const isExported = ANSWERS !== null;

const REPORT_ONLY = "This exported page contains only the report";
const NO_SEARCH = "This exported page contains only a part of the events";

/** What a server would answer for a URL below `api/v1/`. */
export function answerFromPage(url: string, answers: Answers | null = ANSWERS): Response {
  const { pathname, searchParams } = new URL(url);
  const route = decodeURIComponent(pathname.split("/api/v1/")[1] ?? "");
  if (answers && Object.hasOwn(answers, route)) return Response.json(answers[route]);
  const [, capture, kind] = /^(captures\/[^/]+)\/(window|search)$/.exec(route) ?? [];
  const timelines = capture === undefined ? undefined : answers?.[`${capture}/views/timelines`];
  const window = kind === "window" && timelines ? chooseWindow(timelines as EventWindow[], searchParams) : undefined;
  if (window) return Response.json(window);
  const message = kind === undefined ? REPORT_ONLY : NO_SEARCH;
  const hint = "Open the log folder in TensorBoard to see everything.";
  return Response.json({ error: { message, hint } }, { status: 404 });
}

/** The shortest part of the timeline that covers a range, else the longest; without a range, the step in
 *  which the finding costs time, else a typical one. The second part is everything. */
function chooseWindow(timelines: EventWindow[], query: URLSearchParams): EventWindow | undefined {
  const [worker, from, to] = ["worker", "from_ns", "to_ns"].map((key) => Number(query.get(key))) as [number, number, number];
  const length = ({ from_ns: start, to_ns: end }: EventWindow): number => end - start;
  const ofWorker = timelines.filter((candidate) => candidate.worker === worker);
  if (!query.has("from_ns")) {
    const costs = ({ claims }: EventWindow): boolean => claims.some(({ finding }) => String(finding) === query.get("finding"));
    return ofWorker.find((candidate, place) => place !== 1 && costs(candidate)) ?? ofWorker[0];
  }
  const covering = ofWorker.filter((candidate) => candidate.from_ns <= from && candidate.to_ns >= to);
  if (covering.length > 0) return covering.reduce((best, next) => (length(next) < length(best) ? next : best));
  return ofWorker.reduce<EventWindow | undefined>((best, next) => (best && length(best) >= length(next) ? best : next), undefined);
}
