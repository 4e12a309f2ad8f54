// In which order captures are analyzed.
import assert from "node:assert/strict";
import { test } from "node:test";
import { newestFirst } from "../../src/pages/runs/groups";
import { analyze, noteOnScreen, stopAnalyses, waiting } from "../../src/state/analyses";
import type { Capture, CaptureList } from "../../src/state/answers";
import { captures } from "../../src/state/store";

const COUNT = 5_000;
const list = Array.from(
  { length: COUNT },
  // The last by name is the newest.
  (_, place) =>
    ({ id: `c${place}`, run: `run${place}`, session: "", recorded: String(place).padStart(6, "0"), status: "new", size_bytes: 1 }) as Capture,
);
const begun: string[] = [];
const answers: (() => void)[] = [];
globalThis.fetch = (url) => {
  const id = /captures\/([^/]+)\/row/.exec(String(url))?.[1] ?? "";
  begun.push(id);
  return new Promise((resolve) => {
    answers.push(() => resolve(Response.json({ ...list.find((capture) => capture.id === id), status: "done" })));
  });
};
/** Lets the analysis that began first end, and the next one begin. */
async function next(): Promise<void> {
  answers.shift()?.();
  for (let turn = 0; turn < 5; turn += 1) await new Promise((resolve) => setImmediate(resolve));
}

test("what is on screen is analyzed before what is not, and that the newest first", async () => {
  captures.value = { state: "ready", value: { captures: list } as CaptureList };
  // The screen shows the newest; only a few are analyzed without being asked for.
  noteOnScreen(newestFirst(list).slice(0, 20).map(({ id }) => id));
  assert.deepEqual(waiting.value, Array.from({ length: 12 }, (_, place) => `c${COUNT - 1 - place}`));
  await next(); // none has an answer yet
  assert.deepEqual(begun, [1, 2, 3].map((place) => `c${COUNT - place}`), "three at once");
  // The user scrolls: what was on screen before waits for nobody any more.
  noteOnScreen(["c100", "c99", "c98"]);
  for (let turn = 0; turn < 3; turn += 1) await next();
  assert.deepEqual(begun.slice(3), ["c100", "c99", "c98"]);
  // All are asked for: first those on screen, then the newest.
  analyze(newestFirst(list).map(({ id }) => id).filter((id) => !begun.includes(id)));
  noteOnScreen(["c7", "c6"]);
  for (let turn = 0; turn < 4; turn += 1) await next();
  assert.deepEqual(begun.slice(6), ["c7", "c6", `c${COUNT - 4}`, `c${COUNT - 5}`]);
  const before = begun.length;
  stopAnalyses();
  for (let turn = 0; turn < 4; turn += 1) await next();
  assert.equal(begun.length, before);
  assert.deepEqual(waiting.value, []);
});
