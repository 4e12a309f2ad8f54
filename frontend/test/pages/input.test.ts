import assert from "node:assert/strict";
import { test } from "node:test";
import { orderTree, stallParts } from "../../src/pages/input";
import type { InputIterator } from "../../src/report";

test("children come right after their parents, slowest first", () => {
  const node = (path: string, parent: number | null, totalNs: number): InputIterator =>
    ({ path, kind: path, parent, calls: 1, total_ns: totalNs, self_ns: 0 }) as InputIterator;
  const tree = [node("root", null, 9), node("fast", 0, 1), node("slow", 0, 8), node("leaf", 2, 7)];
  assert.deepEqual(
    orderTree(tree).map(({ index, depth }) => [tree[index]?.path, depth]),
    [["root", 0], ["slow", 1], ["leaf", 2], ["fast", 1]],
  );
});

test("unknown and empty parts of the input wait are left out", () => {
  const parts = stallParts({ stall_ns: 5, iterators: [], reading_on_demand_ns: 0, preprocessing_ns: 5 });
  assert.deepEqual(parts.map(({ key, ns }) => [key, ns]), [["preprocessing", 5]]);
});
