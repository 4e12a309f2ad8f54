// Which pages the navigation shows.
import assert from "node:assert/strict";
import { test } from "node:test";
import { capturePage, shownPages } from "../../src/pages/registry";
import type { Capture } from "../../src/state/answers";
import { loadRunView } from "../../src/state/run-view";
import { readSample } from "../samples";

const RECORDED = readSample("healthy");
/** Of files that hold sums instead of events. */
const REPORT = { ...RECORDED, workers: RECORDED.workers.map((worker) => ({ ...worker, events: 0 })) };
const namesWith = (available_views: string[], capture: Partial<Capture> = {}): string[] =>
  shownPages(capture as Capture, { ...REPORT, available_views }).map(({ name }) => name);

test("pages follow the views of the report", () => {
  assert.deepEqual(namesWith([]), ["report"]);
  assert.deepEqual(namesWith(["serving", "steps"]), ["report", "time", "serving"]);
  assert.deepEqual(namesWith(["snapshot", "parallelism"]), ["report", "memory", "ranks"]);
  assert.deepEqual(namesWith(["calls", "kernels"]), ["report", "device", "host"]);
  assert.deepEqual(namesWith(["unheard-of"]), ["report"]);
});

test("a run that was recorded again has a history", () => {
  assert.deepEqual(namesWith([], { recordings: 2 }), ["report", "time"]);
  assert.deepEqual(namesWith([], { recordings: 1 }), ["report"]);
});

test("large event files show a page that reads them, and others first show that they hold scalars", () => {
  assert.deepEqual(namesWith([], { has_scalars: true, reads_scalars: false }), ["report", "time"]);
  assert.deepEqual(namesWith([], { has_scalars: true, reads_scalars: true }), ["report"]);
  assert.deepEqual(namesWith([], { has_scalars: false, reads_scalars: false }), ["report"]);
});

const ANSWERS: [string, Response, string[]][] = [
  ["a view", Response.json({ run: "gpu" }), ["report", "time"]],
  ["no view", Response.json(null), ["report"]],
  ["a failure", Response.json({ error: { message: "unreadable" } }, { status: 422 }), ["report", "time"]],
];
for (const [name, answer, pages] of ANSWERS) {
  test(`the page of the whole run follows ${name}`, async (context) => {
    context.mock.method(globalThis, "fetch", async () => answer);
    loadRunView(name);
    await new Promise((resolve) => setTimeout(resolve, 10));
    assert.deepEqual(namesWith([], { id: name, has_scalars: true, reads_scalars: true }), pages);
    assert.deepEqual(namesWith([], { id: "other", has_scalars: true, reads_scalars: true }), ["report"]);
  });
}

test("without a report, pages with views wait for it", () => {
  const shown = shownPages({ has_scalars: true } as Capture, null);
  assert.deepEqual(shown.map(({ name }) => name), ["report", "time"]);
});

test("recorded events have a timeline", () => {
  assert.deepEqual(shownPages({} as Capture, { ...RECORDED, available_views: [] }).map(({ name }) => name), ["report", "timeline"]);
});

test("an unknown name in a link leads to the report", () => {
  assert.equal(capturePage("device").name, "device");
  assert.equal(capturePage("nonsense").name, "report");
});
