import assert from "node:assert/strict";
import { test } from "node:test";
import { renderToString } from "preact-render-to-string";
import { chooseFirst } from "../../src/findings/first-finding";
import { FindingList, nestFindings } from "../../src/findings/list";
import { openFindings } from "../../src/state/store";
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

test("an open finding shows summary, remedy, evidence and saving", () => {
  openFindings.value = new Set(["input-stall"]);
  const html = renderToString(<FindingList report={readSample("train")} captureId="train" />);
  openFindings.value = new Set();
  assert.match(html, /aria-expanded="true"[^>]*aria-controls="finding-input-stall"/);
  const text = textOf(html);
  assert.match(text, /Saves 46\.0 ms \(19\.2 %\) , range 28–46 ms/);
  assert.match(text, /Four workers deliver a batch every 230.ms/);
  assert.match(text, /num_workers=12/);
  assert.match(text, /58\.4 ms 1\.68 s 7/);
  assert.match(text, /When to ignore/);
});

test("what to begin with is the specific finding that would save nearly as much", () => {
  const [general, ...rest] = readSample("train").findings;
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
