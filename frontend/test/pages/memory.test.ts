import assert from "node:assert/strict";
import { test } from "node:test";
import { phaseStretches } from "../../src/charts/memory-chart";
import { describeBatchRoom, describeHolder } from "../../src/pages/memory";
import { explainPeak } from "../../src/pages/memory-course";
import type { MemoryView } from "../../src/report";

test("the batch that fits is a range", () => {
  assert.match(describeBatchRoom({ low: 2.04, high: 3.5 }), /^A batch of 2.0 to 3.5 times the size/);
  assert.match(describeBatchRoom({ low: 0.8, high: 1.2 }), /^A batch of 1.0 to 1.2 times the size/);
  assert.match(describeBatchRoom({ low: 2, high: 2.01 }), /^A batch of 2.0 times the size/);
  assert.match(describeBatchRoom({ low: 0.5, high: 0.9 }), /^A smaller batch/);
});

test("the peak is explained by its pass, its step and what it holds", () => {
  const view = {
    at_ns: [1_000, 5_000_000], allocated_bytes: [10, 40], peak_at_ns: 5_001_000, step: [7, 8], step_end_ns: [4_000_000, 9_000_000],
    phases: [{ at_ns: 0, phase: "forward" }, { at_ns: 4_500_000, phase: "backward" }, { at_ns: 8_000_000, phase: "optimizer" }],
    categories: [{ category: "activations", bytes: 30 }, { category: "gradients", bytes: 10 }],
    alive: [{ operator: null, bytes: 20 }, { operator: "aten::linear", bytes: 20 }],
  } as unknown as MemoryView;
  assert.equal(
    explainPeak(view, describeHolder(view)),
    "The peak is 5.00 ms after the first change, in the backward pass of step 8. It holds 75.0 % activations, 25.0 % gradients. " +
      "Most that was allocated in the recording is from aten::linear: 20 B.",
  );
  const bare = { ...view, phases: [], categories: [], alive: [], step: [], step_end_ns: [] };
  assert.equal(explainPeak(bare, describeHolder(bare)), "The peak is 5.00 ms after the first change.");
});

test("the passes last until the next one begins, and none longer than the recording", () => {
  const phases = [{ at_ns: 50, phase: "forward" }, { at_ns: 140, phase: "backward" }, { at_ns: 900, phase: "optimizer" }];
  assert.deepEqual(phaseStretches({ at_ns: [100], phases } as unknown as MemoryView, 500), [
    { from: 0, to: 40, phase: "forward" },
    { from: 40, to: 500, phase: "backward" },
  ]);
});
