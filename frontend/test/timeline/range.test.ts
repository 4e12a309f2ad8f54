import assert from "node:assert/strict";
import { test } from "node:test";
import { between, formatRange, panned, parseRange, rangeAround, showing, zoomed } from "../../src/timeline/range";

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

test("a range in an address is read back, and nonsense is none", () => {
  assert.deepEqual(parseRange(formatRange({ fromNs: 12.4, toNs: 99.6 })), { fromNs: 12, toNs: 100 });
  for (const text of ["", "5", "5-5", "9-3", "-5-3", "1e3-2e3", "0-9999999999999999"]) assert.equal(parseRange(text), null);
});

test("an event fills a part of the range around it, within the trace", () => {
  assert.deepEqual(rangeAround({ startNs: 20_000, durationNs: 4_000, name: "" }, 0.5), { fromNs: 18_000, toNs: 26_000 });
  assert.deepEqual(rangeAround({ startNs: 100, durationNs: 10, name: "" }, 0.5), { fromNs: 0, toNs: 2_000 });
});

test("a range moves only if a stretch is out of view", () => {
  assert.equal(showing(RANGE, 3_900, 5_000), RANGE);
  assert.deepEqual(showing(RANGE, 8_000, 8_200), { fromNs: 7_100, toNs: 9_100 });
});

test("a range that is dragged may go either way, and stays in the trace", () => {
  assert.deepEqual(between(900, 100.4, 1_000), { fromNs: 100, toNs: 900 });
  assert.deepEqual(between(-50, 2_000, 1_000), { fromNs: 0, toNs: 1_000 });
  assert.equal(between(5, 5.2, 1_000), null);
});
