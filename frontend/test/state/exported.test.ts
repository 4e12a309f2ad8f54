import assert from "node:assert/strict";
import { test } from "node:test";
import { answerFromPage } from "../../src/state/exported";

const event = (start: number, duration: number) => ({
  track: 0, start_ns: start, duration_ns: duration, name: "e", kind: "operator",
});
const line = (finding: number, from: number, to: number, events: unknown[]) => ({
  finding, worker: 0, from_ns: from, to_ns: to, tracks: [], events, claims: [[from, to]], truncated: 1,
});
const ANSWERS = {
  rules: { rules: [] },
  "captures/0/views/timelines": [
    line(0, 0, 600, [event(10, 5), event(250, 100)]),
    line(0, 200, 400, [event(250, 100), event(390, 30)]),
    line(1, 200, 400, []),
  ],
};
const ask = async (path: string) => {
  const answer = answerFromPage(`file:///api/v1/${path}`, ANSWERS);
  return { status: answer.status, body: await answer.json() };
};
const window = (finding: number, from: number, to: number, worker = 0) =>
  ask(`captures/0/window?worker=${worker}&finding=${finding}&from_ns=${from}&to_ns=${to}&max_events=9`);

test("an exported page answers from its data", async () => {
  assert.deepEqual(await ask("rules"), { status: 200, body: { rules: [] } });
  const { status, body } = await ask("doctor");
  assert.equal(status, 404);
  assert.match(body.error.message, /contains only the report/);
});

test("a timeline is cut from the shortest that covers it", async () => {
  const { body: narrow } = await window(0, 240, 380);
  assert.deepEqual(narrow.events, [event(250, 100)]);
  assert.deepEqual(narrow.claims, [[240, 380]]);
  assert.deepEqual([narrow.from_ns, narrow.to_ns], [240, 380]);
  const { body: wide } = await window(0, 0, 300);
  assert.deepEqual(wide.events, [event(10, 5), event(250, 100)]);
});

test("events come from any finding, claims only from its own", async () => {
  const { body } = await window(1, 0, 600);
  assert.equal(body.events.length, 2);
  assert.deepEqual(body.claims, []);
  const { body: ownWindow } = await window(1, 200, 400);
  assert.deepEqual(ownWindow.claims, [[200, 400]]);
});

test("a range outside all stored timelines is an error", async () => {
  for (const missing of [await window(0, 0, 700), await window(0, 240, 380, 1)]) {
    assert.equal(missing.status, 404);
    assert.match(missing.body.error.message, /only the events around the first evidence/);
  }
});
