// An exported page has no server: what the routes would answer travels with it.
import type { EventWindow } from "./api";

type Answers = Record<string, unknown>;
/** The events around a finding's first pieces of evidence, as `report/views/timelines.py` has them. */
type Timeline = EventWindow & { finding: number };

/** Answers by route, as `report/html.py` writes them; null in TensorBoard. */
function readAnswers(): Answers | null {
  const block = globalThis.document?.getElementById("perf-advisor-answers");
  return block ? (JSON.parse(block.textContent ?? "") as Answers) : null;
}

const ANSWERS = readAnswers();

export const isExported = ANSWERS !== null;

const REST = "This file holds the report alone; the Perf Advisor tab shows this";
const NO_EVENTS = "This file holds the events around the first evidence alone; the Perf Advisor tab has all";

/** What a server would have sent for an address below `api/v1/`. */
export function answerFromPage(url: string, answers: Answers | null = ANSWERS): Response {
  const { pathname, searchParams } = new URL(url);
  const route = decodeURIComponent(pathname.split("/api/v1/")[1] ?? "");
  if (answers && Object.hasOwn(answers, route)) return Response.json(answers[route]);
  const capture = /^(captures\/[^/]+)\/window$/.exec(route)?.[1];
  const stored = capture === undefined ? undefined : answers?.[`${capture}/views/timelines`];
  const found = stored && cutOut(stored as Timeline[], searchParams);
  if (found) return Response.json(found);
  const message = capture === undefined ? REST : NO_EVENTS;
  return Response.json({ error: { message, hint: "Open the log folder in TensorBoard." } }, { status: 404 });
}

const clip = (claims: EventWindow["claims"], from: number, to: number): EventWindow["claims"] =>
  claims
    .filter(([start, end]) => start < to && end > from)
    .map(([start, end]) => [Math.max(start, from), Math.min(end, to)]);

/** The part of a stored time line that is asked for, from the narrowest that has all of it. */
function cutOut(stored: Timeline[], asked: URLSearchParams): EventWindow | undefined {
  const [worker, finding, from, to] = ["worker", "finding", "from_ns", "to_ns"].map((key) => Number(asked.get(key)));
  const [whole] = stored
    .filter((one) => one.worker === worker && one.from_ns <= from! && one.to_ns >= to!)
    // Claims are a finding's own; events are anybody's.
    .sort((a, b) => Number(b.finding === finding) - Number(a.finding === finding) || a.to_ns - a.from_ns - (b.to_ns - b.from_ns));
  return (
    whole && {
      ...whole,
      from_ns: from!,
      to_ns: to!,
      events: whole.events.filter(({ start_ns: start, duration_ns: duration }) => start < to! && start + duration > from!),
      claims: whole.finding === finding ? clip(whole.claims, from!, to!) : [],
    }
  );
}
