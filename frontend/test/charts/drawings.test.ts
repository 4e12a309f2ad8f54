// What charts show and leave out.
import assert from "node:assert/strict";
import { test } from "node:test";
import { blocksOf, segmentLabel } from "../../src/charts/breakdown-bar";
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

test("precisions of compute are one block, and what is below 1 % is another", () => {
  const part = (cause: string, total_ns: number) => ({ cause, label: cause, total_ns, share: total_ns / 1000 });
  const breakdown = [part("compute-16", 300), part("compute-unknown", 4), part("input", 682), part("python", 5), part("launching", 9), part("copies", 0)];
  const blocks = blocksOf(breakdown).map(({ key, total_ns: ns, color, parts }) => [key, ns, color, parts.length]);
  assert.deepEqual(blocks, [["compute", 304, "compute-16", 2], ["input", 682, "input", 0], ["other", 14, "launching", 2]]);
  // What is alone keeps its name.
  const few = blocksOf([part("compute-32", 994), part("python", 6)]);
  assert.deepEqual(few.map(({ key }) => key), ["compute-32", "python"]);
});
