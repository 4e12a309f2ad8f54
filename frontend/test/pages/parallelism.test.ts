import assert from "node:assert/strict";
import { test } from "node:test";
import { describeParallelism, describeRanks, dimensionName } from "../../src/pages/parallelism";
import type { DimensionInfo, ParallelismView } from "../../src/report";

const COST = {
  operation: null,
  count: 8,
  time_ns: 50_000_000,
  exposed_ns: 20_000_000,
  hidden_ns: 30_000_000,
  bytes_per_step: null,
  algorithm_bytes_per_s: null,
  bus_bytes_per_s: null,
};

function dimension(name: string, group: Partial<DimensionInfo["groups"][0]> = {}): DimensionInfo {
  return {
    dimension: name,
    evidence: null,
    groups: [{ name: null, description: null, ranks: null, size: null, ...group }],
    groups_truncated: 0,
    cost: COST,
    operations: [],
    is_transfer_known: true,
    link_bytes_per_s: null,
    rank_exposed_ns: null,
    rank_waiting_ns: null,
    rank_sent_bytes: null,
  };
}

test("groups of unknown purpose are told apart by what the program calls them", () => {
  assert.equal(dimensionName(dimension("tensor", { description: "mesh_tp" })), "Tensor parallel");
  assert.equal(dimensionName(dimension("unknown", { name: "7", description: "default_pg" })), "Default process group");
  assert.equal(dimensionName(dimension("unknown", { name: "7" })), "Process group 7");
  assert.equal(dimensionName(dimension("unknown")), "Other process groups");
});

test("the number of ranks is that of the groups", () => {
  const { groups } = dimension("data", { size: 8 });
  assert.equal(describeRanks(groups), "8");
  assert.equal(describeRanks([...groups, { name: null, description: null, ranks: null, size: 2 }]), "2–8");
  assert.equal(describeRanks(dimension("data").groups), null);
});

test("the headline names the costliest dimension", () => {
  const view: ParallelismView = { exposed_ns: 20_000_000, dimensions: [dimension("tensor")], truncated: 0, elsewhere_ns: 0 };
  const overview = { steps: 2, window_ns: 100_000_000 };
  const report = { overview } as unknown as Parameters<typeof describeParallelism>[1];
  assert.equal(
    describeParallelism(view, report).replaceAll("\u00a0", " "),
    "Tensor parallel: 10.0 ms of exposed communication (20.0 % of the step)",
  );
  assert.equal(describeParallelism({ ...view, exposed_ns: 0 }, report), "Compute hides all communication");
});
