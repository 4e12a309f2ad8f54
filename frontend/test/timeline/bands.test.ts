import assert from "node:assert/strict";
import { test } from "node:test";
import { bandsOf } from "../../src/timeline/drawing";
import { makePicture } from "../../src/timeline/picture";
import { windowOf } from "./windows";

test("steps are named, and so is the time that is not analyzed", () => {
  const answer = { ...windowOf(100, 200, []), whole_ns: 1_000, window_ns: [150, 800] as [number, number] };
  const bands = bandsOf(makePicture({ ...answer, steps: [[6, 50, 80], [7, 80, 120]] }));
  assert.deepEqual(
    bands.map(([start, end, [label]]) => [start, end, label]),
    [[150, 180, "Step 6"], [180, 220, "Step 7"], [0, 150, "Not analyzed"], [800, 1_000, "Not analyzed"]],
  );
});

test("a recording without an analyzed window has no margins", () => {
  assert.deepEqual(bandsOf(makePicture({ ...windowOf(0, 100, []), window_ns: [0, 0] })), []);
});
