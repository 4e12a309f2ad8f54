import assert from "node:assert/strict";
import { test } from "node:test";
import { describeFinding } from "../../src/pages/run-changes";
import type { FindingChange } from "../../src/report";

test("a finding compares the predicted with the achieved change", () => {
  const base = { rule_id: "r", title: "t", reason: null, base_severity: "high", target_severity: null, remaining: null, causes: [] } as const;
  const change = (achieved: number, isInRange: boolean): FindingChange => ({
    ...base,
    causes: [],
    status: "fixed",
    predicted: { low_ns: 10e6, expected_ns: 20e6, high_ns: 30e6, basis: "measured" },
    achieved_ns: achieved,
    is_in_range: isInRange,
  });
  assert.equal(describeFinding(change(25e6, true), true), "predicted 10.0–30.0 ms less; achieved 25.0 ms less, as predicted");
  assert.match(describeFinding(change(5e6, false), true), /less than predicted$/);
  assert.match(describeFinding(change(35e6, false), true), /more than predicted$/);
  assert.match(describeFinding(change(-5e6, false), true), /achieved 5\.00 ms more/);
  // The cause is gone, but something else took its time.
  assert.equal(
    describeFinding(change(25e6, true), false),
    "predicted 10.0–30.0 ms less; achieved 25.0 ms less, but the step did not get faster",
  );
});
