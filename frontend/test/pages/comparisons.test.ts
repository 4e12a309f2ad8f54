// What a capture is compared with, before the user chooses.
import assert from "node:assert/strict";
import { test } from "node:test";
import { comparisonOf, comparisonsOf } from "../../src/pages/comparisons";
import type { Capture } from "../../src/state/answers";
import { link } from "../../src/state/link";

const capture = (id: string, ...partners: Capture["partners"]): Capture => ({ id, partners }) as Capture;
const NEAREST = { id: "before", base: "before", target: "now", reason: "recorded before" };
const CAPTURES = [capture("before"), capture("now", NEAREST), capture("best")];
const places = (selected: Capture): [string | undefined, string | undefined][] =>
  comparisonsOf(selected, CAPTURES).map(({ to }) => [to.base, to.target]);
const [before, now] = CAPTURES as [Capture, Capture, Capture];

test("the nearest run is proposed", () => {
  assert.deepEqual(places(now), [["before", "now"]]);
  assert.equal(comparisonOf(now, CAPTURES).base, "before");
  // A run that nothing is near to is the base of what the user chooses.
  assert.deepEqual([comparisonOf(before, CAPTURES).base, comparisonOf(before, CAPTURES).target], ["before", ""]);
});

test("a pinned base comes first, and is named once", () => {
  link.value = { pin: "best" };
  assert.deepEqual(places(now), [["best", "now"], ["before", "now"]]);
  link.value = { pin: "before" };
  assert.deepEqual(places(now), [["before", "now"]]);
  assert.deepEqual(places(before), []);
  link.value = { pin: "moved away" };
  assert.deepEqual(places(now), [["before", "now"]]);
  link.value = {};
});
