import assert from "node:assert/strict";
import { test } from "node:test";
import { heatCells, median } from "../src/charts/ranks-charts";
import { usedRoofs } from "../src/charts/roofline-chart";
import type { FindingChange, InputIterator, KernelPoint, KernelsView, RanksView } from "../src/report";
import { describeFinding } from "../src/views/comparison";
import { type Column, filterRows, sortRows } from "../src/views/data-table";
import { orderTree, stallParts } from "../src/views/input";
import { describeProduct } from "../src/views/kernels";
import { describeLateness } from "../src/views/ranks";

interface Row {
  name: string;
  ns: number | null;
}
const ROWS: Row[] = [
  { name: "gemm", ns: 20 },
  { name: "copy", ns: null },
  { name: "Add", ns: 3_000 },
  { name: "add_ gemm", ns: 20 },
];
const COLUMNS: Column<Row>[] = [
  { key: "name", label: "Name", unit: null, value: ({ name }) => name },
  { key: "ns", label: "Time", unit: "ns", value: ({ ns }) => ns },
];
const names = (rows: Row[]): string[] => rows.map(({ name }) => name);

test("rows sort both ways, the unknown last, equals as they were", () => {
  const byTime = ({ ns }: Row): number | null => ns;
  assert.deepEqual(names(sortRows(ROWS, byTime, true)), ["Add", "gemm", "add_ gemm", "copy"]);
  assert.deepEqual(names(sortRows(ROWS, byTime, false)), ["gemm", "add_ gemm", "Add", "copy"]);
  assert.deepEqual(names(sortRows(ROWS, ({ name }) => name, false)), ["add_ gemm", "Add", "copy", "gemm"].sort((a, b) => a.localeCompare(b, "en")));
});

test("every word must be in a row, in whatever column and case", () => {
  assert.deepEqual(names(filterRows(ROWS, COLUMNS, "ADD")), ["Add", "add_ gemm"]);
  assert.deepEqual(names(filterRows(ROWS, COLUMNS, "add µs")), ["Add"]);
  assert.equal(filterRows(ROWS, COLUMNS, " ").length, 4);
});

test("children stand right after their parents, the slowest first", () => {
  const node = (path: string, parent: number | null, totalNs: number): InputIterator =>
    ({ path, kind: path, parent, calls: 1, total_ns: totalNs, self_ns: 0 }) as InputIterator;
  const tree = [node("root", null, 9), node("fast", 0, 1), node("slow", 0, 8), node("leaf", 2, 7)];
  assert.deepEqual(
    orderTree(tree).map(({ place, depth }) => [tree[place]?.path, depth]),
    [["root", 0], ["slow", 1], ["leaf", 2], ["fast", 1]],
  );
});

test("parts of the stall that are unknown or nothing are left out", () => {
  const parts = stallParts({ stall_ns: 5, iterators: [], reading_on_demand_ns: 0, preprocessing_ns: 5 });
  assert.deepEqual(parts.map(({ key, ns }) => [key, ns]), [["preprocessing", 5]]);
});

const RANKS: RanksView = {
  causes: ["communication"],
  total_ns: [[10, 30, 20, 40]],
  step_ns: [100, 100, 100, 100],
  clock_skew_ns: null,
  collectives: 4,
  times_late: [0, 0, 4, 1],
  late_ns: [0, 0, 2_000_000, 5_000_000],
  waiting_ns: [1, 1, 1, 1],
  late: [2, 3],
  waited_for: [],
  pairs_ns: [],
  step_index: [],
  critical: [],
};

test("a map of differences is against the middle rank", () => {
  assert.equal(median([10, 30, 20, 40]), 25);
  assert.equal(median([3, 1, 2]), 2);
  const cells = heatCells(RANKS, ["a", "b", "c", "d"], (cause) => cause, true);
  assert.deepEqual(cells.map(({ ns }) => ns), [-15, 5, -5, 15]);
});

test("the rank that costs most is named, the other late ones counted", () => {
  const sentence = describeLateness(RANKS, ["rank 0", "rank 1", "rank 2", "rank 3"]);
  assert.equal(sentence, "The others wait 5.00 ms a step for rank 3, and 1 other rank too");
  const unsteady = { ...RANKS, late: [], late_ns: [0, 1, 8, 3], waiting_ns: [9, 9, 9, 9] };
  assert.match(describeLateness(unsteady, ["a", "b", "c", "d"]), /most for c, 8 ns a step, but not in every/);
  assert.match(describeLateness({ ...unsteady, late_ns: [5, 5, 5, 5] }, []), /wait 9 ns a step, and not for one alone/);
  assert.match(describeLateness({ ...RANKS, late: [] }, []), /^No rank comes late/);
  assert.match(describeLateness({ ...RANKS, late_ns: null }, []), /not known$/);
});

test("predicted against achieved in words", () => {
  const base = { rule_id: "r", title: "t", reason: null, base_severity: "high", target_severity: null, remaining: null, causes: [] } as const;
  const change = (achieved: number, isInRange: boolean): FindingChange => ({
    ...base,
    causes: [],
    status: "fixed",
    predicted: { low_ns: 10e6, expected_ns: 20e6, high_ns: 30e6, basis: "measured" },
    achieved_ns: achieved,
    is_in_range: isInRange,
  });
  assert.equal(describeFinding(change(25e6, true)), "predicted 10–30 ms less; achieved 25.0 ms less, as predicted");
  assert.match(describeFinding(change(5e6, false)), /not as much as predicted$/);
  assert.match(describeFinding(change(35e6, false)), /more than predicted$/);
  assert.match(describeFinding(change(-5e6, false)), /achieved 5\.00 ms more/);
});

test("only roofs of formats in use are drawn, the highest first", () => {
  const point = (format: string): KernelPoint => ({ format, flop_per_byte: 1, flop_per_s: 1 }) as KernelPoint;
  const roof = (format: string, peak: number) => ({ format, peak_flop_per_s: peak, achievable_flop_per_s: peak });
  const view = {
    roofs: [roof("fp32", 1), roof("fp64", 9), roof("bf16", 5)],
    points: [point("fp32"), point("bf16"), { ...point("fp64"), flop_per_s: null }],
  } as unknown as KernelsView;
  assert.deepEqual(usedRoofs(view).map(({ format }) => format), ["bf16", "fp32"]);
});

test("sizes of products read as such", () => {
  assert.equal(describeProduct([1, 4096, 1024, 512]), "4,096 × 1,024 × 512");
  assert.equal(describeProduct([8, 2, 3, 4]), "8 of 2 × 3 × 4");
  assert.equal(describeProduct(null), null);
});
