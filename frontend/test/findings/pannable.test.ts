import assert from "node:assert/strict";
import { test } from "node:test";
import { panned, zoomed } from "../../src/findings/pannable";

const RANGE = { fromNs: 2_000, toNs: 4_000 };

test("a range moves by a part of its length, and stays in the trace", () => {
  assert.deepEqual(panned(RANGE, 0.5, 10_000), { fromNs: 3_000, toNs: 5_000 });
  assert.deepEqual(panned(RANGE, -5, 10_000), { fromNs: 0, toNs: 2_000 });
  assert.deepEqual(panned(RANGE, 50, 10_000), { fromNs: 8_000, toNs: 10_000 });
  // A range that began beyond the end does not jump.
  assert.deepEqual(panned({ fromNs: 9_000, toNs: 11_000 }, 0.5, 10_000), { fromNs: 9_000, toNs: 11_000 });
});

test("zooming keeps what is under the pointer in place", () => {
  assert.deepEqual(zoomed(RANGE, 0.5, 0.5, 10_000), { fromNs: 2_500, toNs: 3_500 });
  assert.deepEqual(zoomed(RANGE, 0.5, 0, 10_000), { fromNs: 2_000, toNs: 3_000 });
  // Around 3,000: 4,000 to each side would begin before the trace.
  assert.deepEqual(zoomed(RANGE, 4, 0.5, 10_000), { fromNs: 0, toNs: 8_000 });
  assert.deepEqual(zoomed(RANGE, 100, 0.5, 10_000), { fromNs: 0, toNs: 10_000 });
  // The narrowest range is 100 ns.
  assert.deepEqual(zoomed(RANGE, 1e-9, 0.5, 10_000), { fromNs: 2_950, toNs: 3_050 });
});
