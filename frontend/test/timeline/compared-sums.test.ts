import assert from "node:assert/strict";
import { test } from "node:test";
import type { RangeSums, SumRow } from "../../src/state/answers";
import { comparedRows, parseBeside } from "../../src/timeline/compared-sums";

const row = (name: string, ownNs: number, deviceNs: number): SumRow => ({ name, count: 2, own_ns: ownNs, device_ns: deviceNs });
const table = (...rows: SumRow[]) => ({ rows, truncated: 0 });
const sums = (hasDevice: boolean, operators: SumRow[], inputNs: number): RangeSums => ({
  from_ns: 0, to_ns: 100, step: null, steps: [], has_device: hasDevice, causes: [{ cause: "input", total_ns: inputNs }],
  operators: table(...operators), kernels: table(), streams: table(), lines: table(),
});

test("rows are compared by name, and those of the other range alone come last", () => {
  const here = sums(true, [row("mm", 3, 40), row("add", 2, 10)], 50);
  const there = sums(true, [row("mm", 3, 55), row("cat", 1, 7)], 20);
  const rows = comparedRows(here, there, "operators").map(({ name, deviceNs, otherNs, changeNs }) => [name, deviceNs, otherNs, changeNs]);
  assert.deepEqual(rows, [["mm", 40, 55, 15], ["add", 10, 0, -10], ["cat", 0, 7, 7]]);
  const [cause] = comparedRows(here, there, "causes");
  assert.deepEqual([cause?.name, cause?.changeNs, cause?.count], ["Waiting for input", -30, null]);
});

test("without a device, the time is that of the host, also beside a run that has one", () => {
  const [compared] = comparedRows(sums(false, [row("mm", 30, 0)], 0), sums(true, [row("mm", 3, 12)], 0), "operators");
  assert.deepEqual([compared?.otherNs, compared?.changeNs], [12, -18]);
});

test("without another range there is nothing beside it", () => {
  const [compared] = comparedRows(sums(true, [row("mm", 3, 40)], 0), null, "operators");
  assert.deepEqual([compared?.otherNs, compared?.changeNs], [null, null]);
});

test("what a range is compared with is read from the address", () => {
  assert.deepEqual(parseBeside("step-7"), { step: 7 });
  assert.deepEqual(parseBeside("run-a/b-1"), { run: "a/b-1" });
  for (const text of ["", "step-", "step-x", "nothing"]) assert.equal(parseBeside(text), null);
});
