import assert from "node:assert/strict";
import { test } from "node:test";
import type { EventInfo, LinkedEvent } from "../../src/state/answers";
import { arrowsOf } from "../../src/timeline/arrows";

const event = (row: number, startNs: number, durationNs: number): EventInfo => ({
  event: row, row, start_ns: startNs, duration_ns: durationNs, kind: "", name: `event ${row}`, module: "", line: "",
});
const linked = (link: LinkedEvent["link"], ...of: [row: number, startNs: number, durationNs: number]): LinkedEvent => ({ ...event(...of), link });

test("arrows lead from the operator to the launch, and from the launch to the kernel", () => {
  const kernel = { ...event(9, 500, 100), linked: [linked("launch", 2, 100, 20), linked("operator", 1, 50, 100)] };
  assert.deepEqual(arrowsOf(kernel), [
    // The launch is over when the kernel begins.
    { from: { row: 2, atNs: 120 }, to: { row: 9, atNs: 500 } },
    // The operator still runs when it launches.
    { from: { row: 1, atNs: 50 }, to: { row: 2, atNs: 100 } },
  ]);
});

test("the operator around a call has no arrow, its work and its backward nodes have", () => {
  const launch = { ...event(2, 100, 20), linked: [linked("operator", 1, 50, 100), linked("work", 9, 500, 100)] };
  assert.deepEqual(arrowsOf(launch), [{ from: { row: 2, atNs: 120 }, to: { row: 9, atNs: 500 } }]);
  const forward = { ...event(1, 0, 10), linked: [linked("backward", 5, 70, 10)] };
  assert.deepEqual(arrowsOf(forward), [{ from: { row: 1, atNs: 10 }, to: { row: 5, atNs: 70 } }]);
  const backward = { ...event(5, 70, 10), linked: [linked("forward", 1, 0, 10)] };
  assert.deepEqual(arrowsOf(backward), arrowsOf(forward));
});

test("an event without links has no arrows", () => {
  assert.deepEqual(arrowsOf(null), []);
  assert.deepEqual(arrowsOf(event(1, 0, 10)), []);
});
