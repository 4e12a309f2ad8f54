import assert from "node:assert/strict";
import { test } from "node:test";
import { isOnTimeline } from "../../src/findings/finding-timeline";
import type { FindingInfo } from "../../src/report";
import { readSample } from "../samples";

const report = readSample("train");
const span: FindingInfo["evidence"][number] = {
  kind: "span", title: "", note: "", track: "", worker: 0, start_ns: 100, end_ns: 200,
};
const table: FindingInfo["evidence"][number] = { kind: "table", title: "", columns: [], rows: [], truncated: 0 };
const finding = (parts: Partial<FindingInfo>): FindingInfo =>
  ({ ...report.findings[0], saving: null, bounds: null, evidence: [], ...parts }) as FindingInfo;

test("a finding with time, or with evidence that has a time, is on the timeline", () => {
  assert.ok(isOnTimeline(report, report.findings[0] as FindingInfo));
  assert.ok(isOnTimeline(report, finding({ bounds: { high_ns: 1, share_high: 0.1 } })));
  assert.ok(isOnTimeline(report, finding({ evidence: [table, span] })));
  assert.ok(!isOnTimeline(report, finding({ evidence: [table] })));
});

test("without events there is no timeline", () => {
  const sums = { ...report, workers: report.workers.map((worker) => ({ ...worker, events: 0 })) };
  assert.ok(!isOnTimeline(sums, report.findings[0] as FindingInfo));
});
