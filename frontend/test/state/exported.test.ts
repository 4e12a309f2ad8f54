import assert from "node:assert/strict";
import { test } from "node:test";
import { answerFromPage } from "../../src/state/exported";

const line = (worker: number, from: number, to: number, findings: number[] = []) => ({
  worker, from_ns: from, to_ns: to, claims: findings.map((finding) => ({ finding, intervals: [] })),
});
const ANSWERS = {
  rules: { rules: [] },
  "captures/0/views/timelines": [line(0, 100, 200, [0]), line(0, 0, 600, [0, 1]), line(0, 150, 400, [0, 1]), line(1, 0, 90)],
};
const ask = async (path: string) => {
  const answer = answerFromPage(`file:///api/v1/${path}`, ANSWERS);
  return { status: answer.status, body: await answer.json() };
};
const window = async (query: string) => {
  const { body } = await ask(`captures/0/window?bins=9&${query}`);
  return [body.worker, body.from_ns, body.to_ns];
};

test("an exported page answers from its data", async () => {
  assert.deepEqual(await ask("rules"), { status: 200, body: { rules: [] } });
  const { status, body } = await ask("doctor");
  assert.equal(status, 404);
  assert.match(body.error.message, /contains only the report/);
});

test("the shortest part of the timeline that covers a range is shown", async () => {
  assert.deepEqual(await window("worker=0&from_ns=160&to_ns=190"), [0, 100, 200]);
  assert.deepEqual(await window("worker=0&from_ns=160&to_ns=390"), [0, 150, 400]);
  assert.deepEqual(await window("worker=0&from_ns=0&to_ns=300"), [0, 0, 600]);
});

test("the first part is shown at first, and the longest where none covers the range", async () => {
  assert.deepEqual(await window("worker=0"), [0, 100, 200]);
  assert.deepEqual(await window("worker=0&finding=0"), [0, 100, 200]);
  assert.deepEqual(await window("worker=0&finding=1"), [0, 150, 400]);
  assert.deepEqual(await window("worker=0&finding=2"), [0, 100, 200]);
  assert.deepEqual(await window("worker=0&from_ns=0&to_ns=9000"), [0, 0, 600]);
  assert.deepEqual(await window("worker=1&from_ns=0&to_ns=9000"), [1, 0, 90]);
});

test("what the page does not have is an error", async () => {
  for (const missing of [await ask("captures/0/window?worker=2"), await ask("captures/0/search?text=a")]) {
    assert.equal(missing.status, 404);
    assert.match(missing.body.error.message, /only a part of the events/);
  }
});
