// What charts show and leave out.
import assert from "node:assert/strict";
import { test } from "node:test";
import { segmentLabel } from "../../src/charts/breakdown-bar";
import { byteTicks } from "../../src/charts/memory-chart";

test("a segment has its name and share, its share, or nothing, as it fits", () => {
  const part = { cause: "input", label: "Waiting for input", total_ns: 1, share: 0.487 };
  assert.equal(segmentLabel(part, 300), "Waiting for input  48.7 %");
  assert.equal(segmentLabel(part, 60), "48.7 %");
  assert.equal(segmentLabel(part, 30), "");
});

test("the axis of memory ends at its peak or beyond", () => {
  const MIB = 2 ** 20;
  assert.deepEqual(byteTicks(70 * MIB), [0, 16, 32, 48, 64, 80].map((mib) => mib * MIB));
  assert.deepEqual(byteTicks(64 * MIB), [0, 16, 32, 48, 64].map((mib) => mib * MIB));
});
