import assert from "node:assert/strict";
import { test } from "node:test";
import { describeBatch, orderTree, stallParts, workerParts } from "../../src/pages/input";
import type { InputIterator, LoaderWorkers } from "../../src/report";

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

const WORKERS: LoaderWorkers = {
  workers: 2, cores: 8, batches: 6, wall_ns: 60e6, waiting_ns: 50e6, system_ns: 4e6, computing_ns: 6e6, collate_ns: 2e6,
  samples: 16, files: 16, read_bytes: 16 << 20,
};

test("the time of a worker's batch is split, and the batch is described", () => {
  assert.deepEqual(workerParts(WORKERS).map(({ key, ns }) => [key, ns]), [["waiting", 50e6], ["system", 4e6], ["computing", 6e6]]);
  assert.equal(
    describeBatch(WORKERS),
    "16 samples · 16 files opened · 16.0 MiB read (1.00 MiB per sample) · 2.00 ms in collate_fn",
  );
});

test("what older recordings of workers do not tell is left out", () => {
  const old = { ...WORKERS, system_ns: null, collate_ns: null, samples: null, read_bytes: null };
  assert.deepEqual(workerParts(old).map(({ key }) => key), ["waiting", "computing"]);
  assert.equal(describeBatch(old), "16 files opened");
});
