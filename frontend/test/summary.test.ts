import assert from "node:assert/strict";
import { test } from "node:test";
import type { FindingInfo, ProofInfo, Report } from "../src/report";
import { asMarkdown, summaryOf } from "../src/summary";

const finding = (title: string, values: Partial<FindingInfo> = {}): FindingInfo =>
  ({ title, refines: null, saving: null, ...values }) as FindingInfo;
const saving = { low_ns: 31e6, expected_ns: 44.4e6, high_ns: 57.8e6 } as FindingInfo["saving"];
const report = {
  headline: "Waiting for input takes 33.6 % of each step",
  run: "runs/a_b",
  caption: "PyTorch on <b>",
  steps: { used: 4 },
  overview: {
    window_ns: 400e6,
    step_time_ns: 100e6,
    breakdown: [
      { label: "Waiting for input", total_ns: 134e6 }, { label: "Compute, 16-bit", total_ns: 266e6 }, { label: "Python", total_ns: 0 },
    ],
  },
  findings: [
    finding("Load batches in `num_workers=4` processes", { saving }),
    finding("Part of it", { refines: "input-stall" }),
    finding("Never", { remark: { wont_fix: true, text: "" } }),
    finding("Use bf16", { proof: { text: "12 % faster (9 to 15)" } as ProofInfo }),
  ],
} as unknown as Report;

test("a summary has five lines of Markdown", () => {
  assert.deepEqual(summaryOf(report, "http://host/#perf_advisor&p.perf_advisor.capture=a(1)").split("\n"), [
    "**Waiting for input takes 33.6 % of each step**",
    "- Run: runs/a\\_b, PyTorch on \\<b\\>",
    "- Time: 100 ms per step; Compute, 16-bit 66.5 %; Waiting for input 33.5 %",
    "- Changes: 1. Load batches in `num_workers=4` processes (saves 44.4 ms, 31.0–57.8 ms); 2. Use bf16 (tried: 12 % faster (9 to 15))",
    "- [Perf Advisor](http://host/#perf_advisor&p.perf_advisor.capture=a%281%29)",
  ]);
});

test("text stays text, and code stays code", () => {
  assert.equal(asMarkdown("a*b `c*d`\n# <img>"), "a\\*b `c*d` \\# \\<img\\>");
  assert.equal(asMarkdown("an open ` quote"), "an open \\` quote");
});
