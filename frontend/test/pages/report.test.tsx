import assert from "node:assert/strict";
import { test } from "node:test";
import { renderToString } from "preact-render-to-string";
import { groupBySignal } from "../../src/pages/report/checks";
import { Headline } from "../../src/pages/report/headline";
import { readKeyNumbers } from "../../src/pages/report/key-numbers";
import { ReportPage } from "../../src/pages/report/page";
import { readSample } from "../samples";

test("missing key numbers are unknown or not applicable", () => {
  const values = (name: string) =>
    readKeyNumbers(readSample(name)).map(({ label, value, absent }) => [label, value ?? absent]);
  assert.deepEqual(values("train"), [
    ["Device compute", "50.4 %"],
    ["Operators on device", "94.2 %"],
    ["16-bit compute", "57.9 %"],
    ["Input wait", "19.2 %"],
    ["Exposed communication", "12.9 %"],
    ["Peak memory", "62.3 GiB"],
  ]);
  assert.deepEqual(values("cpu"), [
    ["Device compute", "not applicable"],
    ["Operators on device", "not applicable"],
    ["16-bit compute", "not applicable"],
    ["Input wait", "11.9 %"],
    ["Exposed communication", "not applicable"],
    ["Peak memory", "not applicable"],
  ]);
});

test("precision that no kernel shows is unknown, not 0", () => {
  const report = readSample("train");
  report.overview.precision = { unknown: 1 };
  const number = readKeyNumbers(report).find(({ label }) => label === "16-bit compute");
  assert.equal(number?.value, null);
  assert.equal(number?.absent, "unknown");
});

test("an empty profile says so and shows how to record one", () => {
  const report = readSample("cpu");
  report.overview.window_ns = 0;
  report.headline = "The profile is empty: nothing was recorded";
  const html = renderToString(<ReportPage report={report} captureId="1" rejected={[]} />);
  assert.match(html, /nothing was recorded/);
  assert.match(html, /profiler\.step\(\)/);
  assert.doesNotMatch(html, /Where the/);
});

test("the report page of each sample renders without NaN or undefined", () => {
  for (const name of ["train", "healthy", "cpu"]) {
    const html = renderToString(<ReportPage report={readSample(name)} captureId={name} rejected={[]} />);
    assert.equal(html.match(/<h1/g)?.length, 1, name);
    assert.doesNotMatch(html, /NaN|undefined|\[object/, name);
  }
});

test("the headline shows the caption of the report", () => {
  const report = readSample("train");
  assert.match(renderToString(<Headline report={report} />), /NVIDIA H100 80GB HBM3 · rank 0 of 8/);
});

test("each missing signal is listed once, with the rules that need it", () => {
  const outcomes = readSample("train").outcomes.filter(({ status }) => status === "not_applicable");
  assert.deepEqual(
    groupBySignal(outcomes).map(({ missing, ruleIds }) => [missing.signal, ruleIds.length]),
    [["XLA programs", 3], ["Memory events", 2], ["Operator shapes", 1]],
  );
});
