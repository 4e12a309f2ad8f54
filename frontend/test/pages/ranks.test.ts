import assert from "node:assert/strict";
import { test } from "node:test";
import { median } from "../../src/charts/median";
import { heatCells } from "../../src/charts/ranks-charts";
import { describeLateness } from "../../src/pages/ranks";
import type { RanksView } from "../../src/report";

const RANKS: RanksView = {
  causes: ["communication"],
  total_ns: [[10, 30, 20, 40]],
  step_ns: [100, 100, 100, 100],
  clock_skew_ns: null,
  collectives: 4,
  times_late: [0, 0, 4, 1],
  late_ns: [0, 0, 2_000_000, 5_000_000],
  waiting_ns: [1, 1, 1, 1],
  late: [2, 3],
  waited_for: [],
  pairs_ns: [],
  step_index: [],
  step_waiting_ns: null,
  critical: [],
};

test("the difference map compares with the median rank", () => {
  assert.equal(median([10, 30, 20, 40]), 25);
  assert.equal(median([3, 1, 2]), 2);
  const cells = heatCells(RANKS, ["a", "b", "c", "d"], (cause) => cause, true);
  assert.deepEqual(cells.map(({ ns }) => ns), [-15, 5, -5, 15]);
});

test("the headline names the rank that delays the others most", () => {
  const sentence = describeLateness(RANKS, ["rank 0", "rank 1", "rank 2", "rank 3"], "per step");
  assert.equal(sentence, "Other ranks wait 5.00 ms per step for rank 3 and 2.00 ms for rank 2");
  const unsteady = { ...RANKS, late: [], late_ns: [0, 1, 8, 3], waiting_ns: [9, 9, 9, 9] };
  assert.equal(
    describeLateness(unsteady, ["a", "b", "c", "d"], "per step"),
    "Other ranks wait mostly for c: 8 ns per step, but not in every step",
  );
  assert.equal(
    describeLateness({ ...unsteady, late_ns: [5, 5, 5, 5] }, [], "per step"),
    "Ranks wait 9 ns per step, with no single straggler",
  );
  assert.equal(describeLateness({ ...RANKS, late: [] }, [], "per step"), "No stragglers");
  assert.equal(describeLateness({ ...RANKS, late: [] }, ["rank 0", "rank 1"], "per step", 6), "Of the 2 ranks that are here, none is late");
  assert.equal(describeLateness({ ...RANKS, late_ns: null }, [], "per step"), "Stragglers are unknown");
});
