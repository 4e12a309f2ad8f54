import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { renderToString } from "preact-render-to-string";
import { whenShown } from "../src/host";
import type { Report } from "../src/report";
import { openFindings } from "../src/state";
import { describeCapture, sessionName } from "../src/text";
import { groupBySignal } from "../src/views/checks";
import { chooseFirst } from "../src/views/first-change";
import { Empty } from "../src/views/empty";
import { Findings, nestFindings } from "../src/views/findings";
import { readKeyNumbers } from "../src/views/key-numbers";
import { namePieces } from "../src/views/name";
import { Markdown, Prose } from "../src/views/prose";
import { ReportView } from "../src/views/report-view";

const sample = (name: string): Report =>
  JSON.parse(readFileSync(`dev/samples/${name}.report.json`, "utf8"));
const asText = (html: string): string => html.replace(/<[^>]*>/g, " ").replace(/\s+/g, " ");

test("key numbers say unknown or not applicable where there is none", () => {
  const values = (name: string) =>
    readKeyNumbers(sample(name)).map(({ label, value, absent }) => [label, value ?? absent]);
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

test("precision that no kernel tells is unknown, not 0", () => {
  const report = sample("train");
  report.overview.precision = { unknown: 1 };
  const number = readKeyNumbers(report).find(({ label }) => label === "16-bit compute");
  assert.equal(number?.value, null);
  assert.equal(number?.absent, "unknown");
});

test("refined findings nest, orphans stand alone, twins have keys of their own", () => {
  const [first, ...rest] = sample("train").findings;
  assert.ok(first);
  const branches = nestFindings([first, ...rest, { ...first, title: "twin" }]);
  assert.deepEqual(
    branches[0]?.refined.map(({ id }) => id),
    ["host-preprocessing", "slow-batch"],
  );
  assert.equal(branches.at(-1)?.id, "input-stall~2");
  assert.deepEqual(
    nestFindings(rest).map(({ id }) => id).slice(0, 2),
    ["host-preprocessing", "slow-batch"],
  );
});

test("a finding opens with summary, remedy, evidence and savings in words", () => {
  openFindings.value = new Set(["input-stall"]);
  const html = renderToString(<Findings report={sample("train")} captureId="train" />);
  openFindings.value = new Set();
  assert.match(html, /aria-expanded="true"[^>]*aria-controls="finding-input-stall"/);
  const text = asText(html);
  assert.match(text, /Saves 46\.0 ms \(19\.2 %\) , in the range of 28–46 ms/);
  assert.match(text, /Four workers deliver a batch every 230.ms/);
  assert.match(text, /num_workers=12/);
  assert.match(text, /58\.4 ms 1\.68 s 7/);
  assert.match(text, /When to ignore it/);
});

test("a whole report of each sample renders, in words", () => {
  for (const name of ["train", "healthy", "cpu"]) {
    const html = renderToString(<ReportView report={sample(name)} captureId={name} rejected={[]} />);
    assert.equal(html.match(/<h1/g)?.length, 1, name);
    assert.doesNotMatch(html, /NaN|undefined|\[object/, name);
  }
});

test("text of a trace is never markup", () => {
  const evil = "<img src=x onerror=alert(1)> `</code><script>`";
  const html = renderToString(<Prose text={evil} />) + renderToString(<Markdown text={evil} />);
  assert.doesNotMatch(html, /<img|<script/);
  const link = renderToString(<Markdown text="[a](javascript:alert) and [b](https://x.org/)" />);
  assert.doesNotMatch(link, /href="javascript/);
  assert.match(link, /href="https:\/\/x\.org\/"/);
});

test("a number stays on the line of its unit", () => {
  const text = "3.67 ms of 1.50 GiB at 450 GB/s, 12.5 TFLOP/s, 7 steps (48.7 %)";
  const kept = "3.67\u00a0ms of 1.50\u00a0GiB at 450\u00a0GB/s, 12.5\u00a0TFLOP/s, 7 steps (48.7\u00a0%)";
  assert.equal(renderToString(<Prose text={text} />), kept);
});

test("Markdown pages have headings, lists, code and tables", () => {
  const html = renderToString(<Markdown text={readFileSync("dev/samples/rule.md", "utf8")} />);
  assert.equal(html.match(/<h3>/g)?.length, 3);
  assert.equal(html.match(/<li>/g)?.length, 2);
  assert.match(html, /<pre[^>]*><code>loader = DataLoader\(dataset, num_workers=0\)<\/code><\/pre>/);
  assert.match(html, /<th scope="col">limit<\/th>/);
});

test("a capture is described by framework, device, rank and the steps' origin", () => {
  assert.deepEqual(describeCapture(sample("train")), [
    "PyTorch", "NVIDIA H100 80GB HBM3", "rank 0 of 8", "6 steps from ProfilerStep",
  ]);
  assert.deepEqual(describeCapture(sample("cpu")), [
    "TensorFlow", "CPU only", "no steps found: the whole trace as one",
  ]);
});

test("each missing signal is named once, with the rules that need it", () => {
  const outcomes = sample("train").outcomes.filter(({ status }) => status === "not_applicable");
  assert.deepEqual(
    groupBySignal(outcomes).map(({ missing, ruleIds }) => [missing.signal, ruleIds.length]),
    [["XLA programs", 3], ["Memory events", 2], ["Operator shapes", 1]],
  );
});

test("a session's folder name reads as a time", () => {
  assert.equal(sessionName("2026_11_21_04_09_05.012"), "2026-11-21 04:09:05");
  assert.equal(sessionName("my_session"), "my_session");
});

test("a logdir without profiles says what was turned away and what was not looked at", () => {
  const scan = { root: "runs", scanned_files: 12, is_complete: false, is_scanning: false };
  const rejected = [{ path: "runs", reason: "the credentials do not allow to list the files." }];
  const gaps = ["there are more than 100,000 files"];
  const text = asText(renderToString(<Empty list={{ captures: [], rejected, scan: { ...scan, gaps } }} />));
  assert.match(text, /12 files looked at in runs/);
  assert.match(text, /not all: there are more than 100,000 files/);
  assert.match(text, /What could not be read runs The credentials do not allow to list the files/);
  const refused = asText(renderToString(<Empty list={{ captures: [], rejected, scan: { ...scan, gaps: [] } }} />));
  assert.doesNotMatch(refused, /not all:|too large/);
});

test("a hidden tab does nothing until it is shown", () => {
  const frame = Object.assign(new EventTarget(), { innerHeight: 0 });
  let acts = 0;
  whenShown(() => (acts += 1), frame as unknown as Window);
  frame.dispatchEvent(new Event("resize"));
  assert.equal(acts, 0);
  frame.innerHeight = 700;
  frame.dispatchEvent(new Event("resize"));
  frame.dispatchEvent(new Event("resize"));
  assert.equal(acts, 1);
  whenShown(() => (acts += 1), frame as unknown as Window);
  assert.equal(acts, 2);
});

test("what to begin with is the specific finding that would save nearly as much", () => {
  const [general, ...rest] = sample("train").findings;
  assert.ok(general?.saving);
  const specific = (share: number) => ({
    ...general,
    rule_id: "specific",
    refines: general.rule_id,
    saving: general.saving && { ...general.saving, expected_ns: general.saving.expected_ns * share },
  });
  const first = (share: number) => chooseFirst(nestFindings([general, specific(share), ...rest.filter(({ refines }) => !refines)]))?.id;
  assert.equal(first(0.9), "specific");
  assert.equal(first(0.5), general.rule_id);
  assert.equal(chooseFirst([]), undefined);
});

test("names break after what separates their words, and lose nothing", () => {
  assert.deepEqual(namePieces("void at::native::vectorized_elementwise<4>"), [
    "void at::", "native::", "vectorized_", "elementwise<", "4>",
  ]);
  const long = "a_".repeat(10_000);
  assert.equal(namePieces(long).join(""), long);
  assert.equal(namePieces(long).length, 81);
  assert.deepEqual(namePieces(""), []);
});
