import assert from "node:assert/strict";
import { test } from "node:test";
import type { OperatorRow, OperatorTable, OperatorsView } from "../../src/report";
import { describeOperators, groupings } from "../../src/pages/operators";

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

test("the headline names the operator with the most own time", () => {
  // Two steps: 3 ms and 300 calls are 1.5 ms and 150 calls per step.
  assert.equal(
    describeOperators(VIEW, 2),
    "aten::norm takes 75.0 % of the operators’ own time: 1.50 ms in 150 calls per step",
  );
});

test("tables that the profile does not allow are left out", () => {
  assert.deepEqual(groupings(VIEW).map(([name]) => name), ["operator", "line", "call site"]);
});
