import assert from "node:assert/strict";
import { test } from "node:test";
import { boxAt, boxOfFocus, callsIn, causesAt, covers, findingsAt, makePicture } from "../../src/timeline/picture";
import { windowOf } from "./windows";

// main   |step 100..180: fetch 110..130, fetch 140..150|   stream 7 |kernel 150..170|
const PICTURE = makePicture(
  windowOf(100, 180, [
    [0, "step", 100, 180],
    [1, "fetch", 110, 130],
    [1, "fetch", 140, 150],
    [2, "kernel", 150, 170],
  ]),
);

test("a box is found by row and time, thin ones also from nearby", () => {
  assert.deepEqual([...PICTURE.first], [0, 1, 3, 4]);
  assert.equal(boxAt(PICTURE, 1, 120, 0), 1);
  assert.equal(boxAt(PICTURE, 1, 135, 0), -1);
  assert.equal(boxAt(PICTURE, 1, 137, 4), 2);
  assert.equal(boxAt(PICTURE, 2, 120, 5), -1);
});

test("the event that a timeline is about is found by name and time", () => {
  assert.equal(boxOfFocus(PICTURE, { startNs: 140, durationNs: 10, name: "fetch" }), 2);
  assert.equal(boxOfFocus(PICTURE, { startNs: 140, durationNs: 10, name: "kernel" }), -1);
  assert.equal(boxOfFocus(PICTURE, { startNs: 140, durationNs: 10, name: "" }), -1);
});

test("own time is without the calls inside, and cut to the range", () => {
  const { calls, hidden } = callsIn(PICTURE, { fromNs: 120, toNs: 180 });
  assert.equal(hidden, 0);
  // The step runs 60 of its 80 ns in the range, with 10 ns of each fetch inside.
  assert.deepEqual(
    calls.map(({ name, count, selfNs, totalNs }) => [name, count, selfNs, totalNs]),
    [["step", 1, 40, 60], ["fetch", 2, 20, 20], ["kernel", 1, 20, 20]],
  );
  // The longest in the range stands for its name.
  assert.deepEqual(calls.map(({ event }) => event), [100, 101, 103]);
});

test("short events that share a box count as hidden", () => {
  const picture = makePicture(windowOf(0, 100, [[0, "step", 0, 100], [1, "add", 10, 60, 5]]));
  const { calls, hidden } = callsIn(picture, { fromNs: 0, toNs: 100 });
  assert.equal(hidden, 5);
  assert.deepEqual(calls.map(({ name, selfNs }) => [name, selfNs]), [["step", 50]]);
});

test("a picture covers what is inside it, unless zooming in would show more", () => {
  assert.equal(covers(PICTURE, { fromNs: 100, toNs: 180 }), true);
  assert.equal(covers(PICTURE, { fromNs: 90, toNs: 180 }), false);
  assert.equal(covers(PICTURE, { fromNs: 110, toNs: 115 }), true);
  const shared = makePicture(windowOf(100, 180, [[0, "add", 100, 180, 9]]));
  assert.equal(covers(shared, { fromNs: 110, toNs: 150 }), true);
  assert.equal(covers(shared, { fromNs: 110, toNs: 115 }), false);
});

test("causes and findings at a moment", () => {
  assert.deepEqual(causesAt(PICTURE, 110), [["input", 0.75], ["python", 0.25]]);
  assert.deepEqual(causesAt(PICTURE, 150), [["python", 1]]);
  assert.deepEqual([findingsAt(PICTURE, 109), findingsAt(PICTURE, 110), findingsAt(PICTURE, 120)], [[], [3], []]);
});
