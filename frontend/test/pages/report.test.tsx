import assert from "node:assert/strict";
import { test } from "node:test";
import { renderToString } from "preact-render-to-string";
import { Checks } from "../../src/pages/report/checks";
import { Headline } from "../../src/pages/report/headline";
import { KeyNumbers } from "../../src/pages/report/key-numbers";
import { ReportPage } from "../../src/pages/report/page";
import { readSample, textOf } from "../samples";

test("key numbers show what the report lists, and unknown ones as such", () => {
  const numbers = (name: string) => textOf(renderToString(<KeyNumbers numbers={readSample(name).key_numbers} />));
  assert.match(numbers("train"), /Device compute .* 50\.4 % of step time busy 68\.3 %/);
  assert.match(numbers("cpu"), /Peak host memory .* 70\.8 MiB/);
  assert.doesNotMatch(numbers("cpu"), /not applicable|step time/i);
  const report = readSample("train");
  const [first] = report.key_numbers;
  assert.ok(first);
  const html = renderToString(<KeyNumbers numbers={[{ ...first, value: null }]} />);
  assert.match(textOf(html), /unknown/);
});

test("an empty profile says so and shows how to record one", () => {
  const report = readSample("cpu");
  report.overview.window_ns = 0;
  report.findings = [];
  report.first = null;
  report.headline = "The profile is empty: nothing was recorded";
  const html = renderToString(<ReportPage report={report} captureId="1" />);
  assert.match(html, /nothing was recorded/);
  assert.match(html, /profiler\.step\(\)/);
  assert.doesNotMatch(html, /Where the/);
});

test("findings are listed, without a breakdown, where no time was recorded", () => {
  const report = readSample("cpu");
  report.overview.window_ns = 0;
  const html = renderToString(<ReportPage report={report} captureId="1" />);
  assert.match(html, /What to change/);
  assert.doesNotMatch(html, /Where the|profiler\.step\(\)/);
});

test("the report page of each sample renders without NaN or undefined", () => {
  for (const name of ["train", "healthy", "cpu"]) {
    const html = renderToString(<ReportPage report={readSample(name)} captureId={name} />);
    assert.equal(html.match(/<h1/g)?.length, 1, name);
    assert.doesNotMatch(html, /NaN|undefined|\[object/, name);
  }
});

test("what takes most of the time is named, with how near it is to its limit", () => {
  const page = textOf(renderToString(<ReportPage report={readSample("train")} captureId="train" />));
  assert.match(page, /Most of the time: aten::addmm 27\.9 % \(at 41\.0 % of achievable rate\) at model\.py:57 forward/);
  assert.match(page, /Waiting for input 23\.0 % idle/);
});

test("the headline shows the caption of the report", () => {
  const report = readSample("train");
  assert.match(renderToString(<Headline report={report} />), /NVIDIA H100 80GB HBM3 · rank 0 of 8/);
});

test("trust and its reason stand before the numbers, once", () => {
  const report = readSample("train");
  assert.doesNotMatch(renderToString(<ReportPage report={report} captureId="1" />), /badge-trust/);
  report.trust = { level: "solid", reasons: [] };
  assert.match(renderToString(<ReportPage report={report} captureId="1" />), /badge-trust-solid">solid recording</);
  const message = "2 of 8 steps (3, 4) lack device events.";
  report.notes = [{ id: "lost-steps", severity: "warning", message, remedy: "Record fewer steps." }];
  report.trust = { level: "limited", reasons: [{ id: "lost-steps", level: "limited", in_short: "some steps lack their device events", message, remedy: "" }] };
  report.steps.excluded = [3, 4].map((index) => ({ index, reason: "partial: lost" }));
  const html = renderToString(<ReportPage report={report} captureId="1" />);
  assert.match(html, /badge-trust-limited">limited trust: some steps lack their device events</);
  assert.ok(html.indexOf("badge-trust") < html.indexOf("strip"));
  assert.match(textOf(html), /Left out: steps 3 and 4 \(partial: lost\)\./);
  assert.equal(html.match(/lack device events/g)?.length, 1);
});

test("checks that another recording allows are listed, the others counted", () => {
  const html = renderToString(<Checks report={readSample("train")} />);
  assert.match(textOf(html), /3 more checks with another recording/);
  assert.match(textOf(html), /3 other checks cannot concern this program/);
  assert.doesNotMatch(html, /XLA programs/);
});

test("four numbers are on the strip, the others below, and none twice", () => {
  const report = readSample("train");
  const html = renderToString(<ReportPage report={report} captureId="1" />);
  const [strip = "", rest = ""] = html.split("More numbers");
  assert.equal(strip.match(/class="tile"/g)?.length, 4);
  assert.match(textOf(strip), /With all changes/);
  for (const { label } of report.key_numbers) {
    assert.equal(html.split(`<dt>${label} `).length, 2, label);
  }
  assert.equal(rest.match(/class="tile( tile-last)?"/g)?.length, report.key_numbers.length - 3);
});
