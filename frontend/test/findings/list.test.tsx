import assert from "node:assert/strict";
import { test } from "node:test";
import { renderToString } from "preact-render-to-string";
import { isAside } from "../../src/findings/remark";
import { FindingList, nestFindings, setAsideApart } from "../../src/findings/list";
import { describeChange } from "../../src/findings/finding";
import { canTick, describeAside, describeOverlap } from "../../src/findings/what-if";
import type { FindingInfo } from "../../src/report";
import { link } from "../../src/state/link";
import { readSample, textOf } from "../samples";

test("specific findings nest, orphans do not, and repeated rules get distinct ids", () => {
  const [first, ...rest] = readSample("train").findings;
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

test("an open finding shows summary, remedy and saving, and its evidence on another tab", () => {
  const draw = (values: Record<string, string>): string => {
    link.value = values;
    const html = renderToString(<FindingList report={readSample("train")} captureId="train" />);
    link.value = {};
    return html;
  };
  const html = draw({ finding: "input-stall" });
  assert.match(html, /aria-expanded="true"[^>]*aria-controls="finding-input-stall"/);
  const text = textOf(html);
  assert.match(text, /Saves 46\.0 ms , range 28\.0–46\.0 ms/);
  assert.match(text, /Four workers deliver a batch every 230.ms/);
  assert.match(text, /num_workers= 12/); // in two colors
  const shown = (tab: string): string => textOf(draw({ finding: "input-stall", "input-stall.details": tab }));
  assert.match(shown("evidence"), /58\.4 ms 1\.68 s 7/);
  assert.match(shown("about"), /When to ignore/);
});

test("one finding is open: of a link with several, the last", () => {
  link.value = { finding: "input-stall,host-preprocessing" };
  const html = renderToString(<FindingList report={readSample("train")} captureId="train" />);
  link.value = {};
  assert.deepEqual(html.match(/aria-expanded="true" aria-controls="[^"]*"/g), ['aria-expanded="true" aria-controls="finding-host-preprocessing"']);
});

test("without findings it says how many checks passed", () => {
  const report = { ...readSample("train"), findings: [] };
  const passed = report.outcomes.filter(({ status }) => status === "passed");
  assert.ok(passed.length > 1);
  const shown = (outcomes: typeof report.outcomes): string =>
    textOf(renderToString(<FindingList report={{ ...report, outcomes }} captureId="train" />));
  assert.match(shown(passed), new RegExp(`No findings: ${passed.length} checks passed\\.`));
  assert.match(shown([]), /nothing could be checked/);
});

test("a chosen cause shows the findings that save its time", () => {
  const report = readSample("train");
  const [first] = report.findings;
  assert.ok(first);
  const about = (causes: string[]) => ({ ...first, refines: null, causes });
  const findings = [
    { ...about(["input"]), rule_id: "a", title: "About input" },
    { ...about(["python"]), rule_id: "b", title: "About Python" },
    // A general finding is shown for a cause that only a specific one is about.
    { ...about(["copies"]), rule_id: "c", title: "General" },
    { ...about(["input", "copies"]), rule_id: "d", title: "Specific", refines: "c" },
  ];
  link.value = { cause: "input" };
  const text = textOf(renderToString(<FindingList report={{ ...report, findings }} captureId="train" />));
  link.value = { cause: "launching" };
  const none = textOf(renderToString(<FindingList report={{ ...report, findings }} captureId="train" />));
  link.value = {};
  assert.match(text, /2 of 3 findings about “/);
  assert.match(text, /About input/);
  assert.match(text, /Specific/);
  assert.doesNotMatch(text, /About Python/);
  assert.match(none, /No finding saves time of this cause/);
});

test("changes that may save time can be ticked, and only those", () => {
  const html = renderToString(<FindingList report={readSample("train")} captureId="train" />);
  assert.match(html, /type="checkbox"/);
  const { saving } = readSample("train").findings[0] as FindingInfo;
  assert.ok(saving && canTick({ saving, bounds: null }));
  assert.ok(canTick({ saving: null, bounds: { high_ns: 1, share_high: 0.1 } }));
  assert.ok(!canTick({ saving: null, bounds: null }));
  assert.match(textOf(html), /Tick changes to see where they lead together/);
});

test("what changes share is said, and what they bring only together", () => {
  const finding = (expected: number): FindingInfo =>
    ({ ...readSample("train").findings[0], proof: null, saving: { expected_ns: expected } }) as FindingInfo;
  const ticked = [finding(3e6), finding(2e6)];
  assert.equal(describeOverlap({ expected_ns: 5e6 }, ticked), "");
  assert.match(describeOverlap({ expected_ns: 4e6 }, ticked), /would save 5.00 ms: 1.00 ms of it is the same time/);
  assert.match(describeOverlap({ expected_ns: 7e6 }, ticked), /would save 5.00 ms: together 2.00 ms more/);
  assert.equal(describeOverlap({ expected_ns: 1e6 }, ticked.slice(1)), "");
});

test("what is set aside is why all changes save another amount", () => {
  const report = readSample("train");
  const whole = { ...report, combined_saving: { low_ns: 0, expected_ns: 100e6, high_ns: 200e6, share_expected: 0.5 } };
  assert.equal(describeAside({ expected_ns: 90e6 }, whole), "");
  const [first, ...rest] = report.findings;
  const noted = { ...first, remark: { wont_fix: true, text: "" } } as FindingInfo;
  const left = { ...whole, findings: [noted, ...rest] };
  // Half a hundredth is rounding.
  assert.equal(describeAside({ expected_ns: 99.5e6 }, left), "");
  assert.match(describeAside({ expected_ns: 90e6 }, left), /counts 100 ms: the sum without what is set aside/);
});

test("what the headline says of the change to begin with is not said again", () => {
  const report = readSample("train");
  const [first, second, ...rest] = report.findings;
  assert.ok(first && second);
  const about = (finding: FindingInfo): FindingInfo => ({ ...finding, heading: null, title: "Launch fewer kernels: the device idles 40 %" });
  const findings = [about(first), about(second), ...rest];
  const shown = { ...report, findings, first: { rule_id: first.rule_id, index: 0 }, headline: "The device idles 40 % of each step." };
  assert.equal(describeChange(findings[0] as FindingInfo, shown), "Launch fewer kernels");
  assert.equal(describeChange(findings[1] as FindingInfo, shown), "Launch fewer kernels: the device idles 40 %");
  assert.equal(describeChange(findings[0] as FindingInfo, { ...shown, headline: "No" }), "Launch fewer kernels: the device idles 40 %");
});

test("what the user decided against is apart, with the note", () => {
  const report = readSample("train");
  const [first, ...rest] = report.findings;
  const noted = { ...first, remark: { wont_fix: true, text: "The disk is slow until May." } } as FindingInfo;
  const html = textOf(renderToString(<FindingList report={{ ...report, findings: [noted, ...rest] }} captureId="train" />));
  assert.match(html, /1 set aside .*won’t fix The disk is slow until May\./);
  const [left, aside] = setAsideApart(nestFindings([noted, ...rest]));
  assert.deepEqual(aside.map(({ finding }) => finding), [noted]);
  assert.deepEqual(left, nestFindings([noted, ...rest]).slice(1));
  // What refines it goes with it, and a finding that refines one that stays goes alone.
  const part = { ...rest[0], refines: noted.rule_id, rule_id: "part" } as FindingInfo;
  const [, withPart] = setAsideApart(nestFindings([noted, part]));
  assert.deepEqual(withPart.map(({ refined }) => refined.length), [1]);
  assert.equal(isAside([noted, part], part), true);
  const general = { ...first, rule_id: "general", refines: null } as FindingInfo;
  const alone = { ...noted, rule_id: "alone", refines: "general" };
  const [stays, goes] = setAsideApart(nestFindings([general, alone]));
  assert.deepEqual([stays.map(({ refined }) => refined.length), goes.map(({ id }) => id)], [[0], ["alone"]]);
});

test("what is set aside is not counted in what if", () => {
  const [first] = readSample("train").findings;
  assert.equal(canTick(first as FindingInfo), true);
  assert.equal(canTick({ ...first, remark: { wont_fix: true, text: "" } } as FindingInfo), false);
  assert.equal(canTick({ ...first, remark: { wont_fix: false, text: "later" } } as FindingInfo), true);
});
