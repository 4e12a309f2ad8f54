import assert from "node:assert/strict";
import { test } from "node:test";
import type { OperatorRow, OperatorTable, OperatorsView, Report } from "../../src/report";
import { groupings, operatorFacts } from "../../src/pages/host/operators";

const row = (operator: string, calls: number, self_ns: number, share: number): OperatorRow => ({
  operator, module: null, line: null, calls, self_ns, share, waiting_ns: 0, device_ns: null, longest_start_ns: 0, longest_ns: 1,
});
const table = (...rows: OperatorRow[]): OperatorTable => ({ rows, truncated: 0 });
const VIEW: OperatorsView = {
  calls: 302,
  self_ns: 4e6,
  waiting_ns: 0,
  by_operator: table(row("aten::mm", 2, 1e6, 0.25), row("aten::norm", 300, 3e6, 0.75)),
  by_module: null,
  by_line: table(row("", 300, 3e6, 0.75)),
  by_call_site: table(row("aten::norm", 300, 3e6, 0.75)),
};

test("the facts are those of a step", () => {
  // Two steps: 302 calls and 4 ms are 151 calls and 2 ms per step.
  assert.deepEqual(operatorFacts(VIEW, { overview: { steps: 2 }, steps: { used: 2 } } as Report), [
    "151 operators per step, 2.00 ms of their own on all threads",
    "no modules recorded",
  ]);
});

test("tables that the profile does not allow are left out", () => {
  assert.deepEqual(groupings(VIEW).map(([name]) => name), ["operator", "line", "call site"]);
});
