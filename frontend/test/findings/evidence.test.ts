import assert from "node:assert/strict";
import { test } from "node:test";
import { findRepeated } from "../../src/findings/evidence";

type Items = Parameters<typeof findRepeated>[0];

const span = (start_ns: number, end_ns: number, worker = 0): Items[number] => ({
  kind: "span", title: "", note: "", track: "", worker, start_ns, end_ns,
});
const event = (start_ns: number, duration_ns: number): Items[number] => ({
  kind: "events",
  title: "",
  rows: [{ name: "f", track: "", worker: 0, start_ns, duration_ns, step: null, source: null }],
  truncated: 0,
});

test("a timeline of the same stretch is not shown twice", () => {
  // The gap of 100 ns is the time of a call of 110 ns.
  assert.deepEqual(findRepeated([span(100, 200), event(95, 110)]), [false, true]);
  assert.deepEqual(findRepeated([event(95, 110), span(100, 200)]), [false, true]);
});

test("another stretch, another rank and a table have nothing to repeat", () => {
  assert.deepEqual(findRepeated([span(100, 200), event(100, 40)]), [false, false]);
  assert.deepEqual(findRepeated([span(100, 200), span(100, 200, 1)]), [false, false]);
  const table: Items[number] = { kind: "table", title: "", columns: [], rows: [], truncated: 0 };
  assert.deepEqual(findRepeated([span(100, 200), table, span(100, 200)]), [false, false, true]);
});
