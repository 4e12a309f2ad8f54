import assert from "node:assert/strict";
import { test } from "node:test";
import { parts, ticksIn } from "../../src/timeline/drawing";
import { LANE_PX, NAME_PX, layOut, placeAt } from "../../src/timeline/layout";
import { makePicture } from "../../src/timeline/picture";
import { cellsAround } from "../../src/timeline/pictures";
import { windowOf } from "./windows";

const { tracks } = windowOf(0, 1, []);

test("tracks are below one another, each with its name above its lanes", () => {
  const layout = layOut(tracks, new Set());
  assert.deepEqual([...layout.rowTop].slice(0, 2), [NAME_PX, NAME_PX + LANE_PX]);
  assert.deepEqual(placeAt(tracks, layout, 3), { track: 0, row: null });
  assert.deepEqual(placeAt(tracks, layout, NAME_PX + LANE_PX + 1), { track: 0, row: 1 });
  const second = layout.trackTop[1] ?? 0;
  assert.equal(placeAt(tracks, layout, second - 1), null);
  assert.deepEqual(placeAt(tracks, layout, second + NAME_PX), { track: 1, row: 2 });
});

test("a closed track shows only its name", () => {
  const [open, closed] = [layOut(tracks, new Set()), layOut(tracks, new Set([0]))];
  assert.equal(open.height - closed.height, 2 * LANE_PX);
  assert.deepEqual([...closed.rowTop].slice(0, 2), [-1, -1]);
  assert.equal(placeAt(tracks, closed, NAME_PX + 1), null);
});

test("detail covers the coarse picture only where it reaches", () => {
  const [whole, fine] = [makePicture(windowOf(0, 1_000, [])), makePicture(windowOf(200, 300, []))];
  const pieces = parts({ range: { fromNs: 250, toNs: 400 }, pictures: [whole, fine] });
  assert.deepEqual(pieces.map(([from, to, picture]) => [from, to, picture === fine]), [[250, 300, true], [300, 400, false]]);
  const outside = parts({ range: { fromNs: 500, toNs: 600 }, pictures: [whole, fine] });
  assert.deepEqual(outside.map(([from, to, picture]) => [from, to, picture === whole]), [[500, 600, true]]);
});

test("ticks are at round times", () => {
  assert.deepEqual(ticksIn({ fromNs: 130, toNs: 480 }, 4), [200, 300, 400]);
  assert.deepEqual(ticksIn({ fromNs: 0, toNs: 1_000 }, 2), [0, 500, 1_000]);
});

test("one range is always fetched with the same cells around it", () => {
  assert.deepEqual(cellsAround({ fromNs: 1_100, toNs: 2_000 }), { fromNs: 0, toNs: 3_072 });
  assert.deepEqual(cellsAround({ fromNs: 5_000, toNs: 5_900 }), { fromNs: 3_072, toNs: 7_168 });
  assert.deepEqual(cellsAround({ fromNs: 5_100, toNs: 6_000 }), { fromNs: 3_072, toNs: 7_168 });
});
