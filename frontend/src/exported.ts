// An exported page has no server: what the routes would answer travels with it.

/** Answers by route, as `report/html.py` writes them; null in TensorBoard. */
function readAnswers(): Record<string, unknown> | null {
  const block = globalThis.document?.getElementById("perf-advisor-answers");
  return block ? (JSON.parse(block.textContent ?? "") as Record<string, unknown>) : null;
}

const ANSWERS = readAnswers();

export const isExported = ANSWERS !== null;

/** What a server would have sent for an address below `api/v1/`. */
export function answerFromPage(url: string): Response {
  const route = decodeURIComponent(new URL(url).pathname.split("/api/v1/")[1] ?? "");
  if (ANSWERS && Object.hasOwn(ANSWERS, route)) return Response.json(ANSWERS[route]);
  const message = "This file holds the report alone; the Perf Advisor tab shows this";
  return Response.json(
    { error: { message, hint: "Open the log folder in TensorBoard." } },
    { status: 404 },
  );
}
