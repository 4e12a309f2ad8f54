import assert from "node:assert/strict";
import { test } from "node:test";
import { type Column, filterRows, sortRows } from "../../src/widgets/sortable-table";

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

test("rows sort stably both ways, with missing values last", () => {
  const byTime = ({ ns }: Row): number | null => ns;
  assert.deepEqual(names(sortRows(ROWS, byTime, true)), ["Add", "gemm", "add_ gemm", "copy"]);
  assert.deepEqual(names(sortRows(ROWS, byTime, false)), ["gemm", "add_ gemm", "Add", "copy"]);
  assert.deepEqual(names(sortRows(ROWS, ({ name }) => name, false)), ["add_ gemm", "Add", "copy", "gemm"].sort((a, b) => a.localeCompare(b, "en")));
});

test("a search matches rows with every word, in any column and case", () => {
  assert.deepEqual(names(filterRows(ROWS, COLUMNS, "ADD")), ["Add", "add_ gemm"]);
  assert.deepEqual(names(filterRows(ROWS, COLUMNS, "add µs")), ["Add"]);
  assert.equal(filterRows(ROWS, COLUMNS, " ").length, 4);
});
