import assert from "node:assert/strict";
import { test } from "node:test";
import { timePoints, topOf } from "../../src/charts/training-charts";
import { formatElapsed } from "../../src/format";
import type { TrainingView } from "../../src/report";
import { toPrice, toSteps } from "../../src/state/run-options";

const VIEW: TrainingView = {
  run: "run",
  headline: "",
  facts: [],
  unit: "step",
  regimes: [{ first_step: 0, last_step: 20, step_ns: 10_000_000 }],
  elapsed_ns: 1e9,
  delays: [],
  recordings: [],
  unknown_profiles: [],
  times: {
    step: [0, 10, 5],
    last_step: [10, 20, 15],
    per_step_ns: [10_000_000, 90_000_000, 12_000_000],
    reason: ["", "evaluation", ""],
    part: [0, 0, 1],
  },
  loss: null,
  rates: [],
  devices: null,
};

test("long intervals are drawn at the top, with their true time", () => {
  const [usual, long, repeated] = timePoints(VIEW);
  assert.equal(usual?.shownNs, 10_000_000);
  assert.equal(long?.shownNs, 30_000_000);
  assert.match(long?.title ?? "", /^steps 10–20\n90\.0 ms per step\nevaluation$/);
  assert.equal(repeated?.part, 1);
});

test("usual steps are never cut, however slow they became", () => {
  const times = { ...VIEW.times, per_step_ns: [10_000_000, 90_000_000, 50_000_000] };
  assert.equal(Math.round(topOf({ ...VIEW, times })), 55_000_000);
});

test("lengths of runs are formatted as in Python", () => {
  assert.equal(formatElapsed(170e9), "2.83 minutes");
  assert.equal(formatElapsed(119e9), "119 s");
  assert.equal(formatElapsed(9_000e9), "2.50 hours");
});

test("prices and steps are positive numbers", () => {
  assert.deepEqual(["2.5", "", "0", "-1", "x", "1e999"].map(toPrice), [2.5, null, null, null, null, null]);
  assert.deepEqual(["100000", "1.5", ""].map(toSteps), [100_000, null, null]);
});
