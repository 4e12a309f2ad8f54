import assert from "node:assert/strict";
import { test } from "node:test";
import { toCsv } from "../../src/widgets/csv";

const COLUMNS = [
  { label: "Kernel", unit: null, value: ({ name }: Row) => name },
  { label: "Per step", unit: "ns", value: ({ ns }: Row) => ns },
  { label: "Count", unit: "count", value: ({ count }: Row) => count },
];
interface Row {
  name: string | null;
  ns: number | null;
  count: number;
}

test("headers have units, numbers are not rounded, and unknown is empty", () => {
  assert.equal(
    toCsv(COLUMNS, [{ name: "gemm", ns: 1234.5, count: 3 }, { name: null, ns: null, count: 0 }]),
    "Kernel,Per step (ns),Count\r\ngemm,1234.5,3\r\n,,0\r\n",
  );
});

test("names with commas and quotes are quoted, and none is a formula", () => {
  const csv = toCsv(COLUMNS, [
    { name: 'f<int, "x">', ns: -1, count: 1 },
    { name: "=HYPERLINK(1)", ns: 2, count: 1 },
    { name: "-x,y", ns: 2, count: 1 },
  ]);
  assert.deepEqual(csv.split("\r\n").slice(1, 4), ['"f<int, ""x"">",-1,1', "'=HYPERLINK(1),2,1", `"'-x,y",2,1`]);
});
