import assert from "node:assert/strict";
import { test } from "node:test";
import { makeBars } from "../../src/charts/steps-chart";

test("neighboring steps share a bar if there are many", () => {
  const index = Array.from({ length: 480 }, (_, step) => step);
  const view = {
    index,
    start_ns: index.map((step) => 11 * step),
    longest: [[]],
    duration_ns: index.map((step) => 10 + (step % 2) * 2),
    causes: ["input"],
    total_ns: [index.map((step) => 10 + (step % 2) * 2)],
  };
  const bars = makeBars(view, () => "Waiting for input");
  assert.equal(bars.length, 240);
  assert.deepEqual(bars[1], {
    label: "2–3", place: 2, cause: "input", causeLabel: "Waiting for input", durationNs: 11, totalNs: 11,
  });
});
