// The order, the groups and the rows on screen of the table of runs.
import assert from "node:assert/strict";
import { test } from "node:test";
import { groupCaptures, newestFirst, searchCaptures, stepTimes } from "../../src/pages/runs/groups";
import { describeMark } from "../../src/pages/runs/columns";
import { sparkPoints } from "../../src/pages/runs/spark-line";
import { formatShare } from "../../src/format";
import type { Capture } from "../../src/state/answers";
import { visibleRows } from "../../src/widgets/window-rows";

const capture = (run: string, day: number, rest: Partial<Capture> = {}): Capture =>
  ({
    id: `${run}@${day}`, run, session: "", recorded: day ? `2026_01_${String(day).padStart(2, "0")}_00_00_00` : "",
    framework: "pytorch", status: "new", step_time_ns: null, recordings: 1, series: run, ...rest,
  }) as Capture;
const names = (captures: readonly Capture[]): string[] => captures.map(({ id }) => id);

test("the newest come first, those of unknown time last", () => {
  const list = [capture("a", 1), capture("b", 0), capture("c", 3), capture("d", 2)];
  assert.deepEqual(names(newestFirst(list)), ["c@3", "d@2", "a@1", "b@0"]);
});

test("directories and runs that were recorded again are groups, each where its newest capture is", () => {
  const twice = { recordings: 2, series: "lm/train" };
  const lines = groupCaptures(
    newestFirst([
      capture("sweep/lr1", 1), capture("sweep/lr2", 9), capture("lm/train/step_1", 4, twice),
      capture("lm/train/step_2", 5, twice), capture("alone/run", 7), capture("top", 8), capture("other", 2),
    ]),
  );
  assert.deepEqual(
    lines.map((line) => (line.kind === "group" ? [line.group.name, names(line.group.captures)] : line.capture.id)),
    [
      ["sweep", ["sweep/lr2@9", "sweep/lr1@1"]],
      "top@8",
      "alone/run@7",
      ["lm/train", ["lm/train/step_2@5", "lm/train/step_1@4"]],
      "other@2",
    ],
  );
});

test("a search finds words anywhere in the row", () => {
  const list = [capture("a/lr1", 1, { first_change: "Use workers" }), capture("a/lr2", 2)];
  assert.deepEqual(names(searchCaptures(list, "lr1 WORKERS")), ["a/lr1@1"]);
  assert.deepEqual(names(searchCaptures(list, "pytorch")), ["a/lr1@1", "a/lr2@2"]);
  assert.deepEqual(names(searchCaptures(list, " ")), ["a/lr1@1", "a/lr2@2"]);
});

test("a spark line goes from the oldest to the newest, and 0 is at the bottom", () => {
  const captures = [capture("c", 3, { step_time_ns: 20 }), capture("b", 2), capture("a", 1, { step_time_ns: 10 })];
  assert.deepEqual(stepTimes({ name: "x", captures }).map(({ ns }) => ns), [10, 20]);
  // 22 px high with edges of 3: 20 is at 3, and 10 in the middle of 3 and 19.
  assert.deepEqual(sparkPoints([10, 20]), [[3, 11], [93, 3]]);
});

test("only rows on screen are counted", () => {
  assert.deepEqual(visibleRows(5_000, 50, 200, 1_000), { from: 0, to: 16 });
  assert.deepEqual(visibleRows(5_000, 50, -100_000, 1_000), { from: 2_000, to: 2_020 });
  assert.deepEqual(visibleRows(10, 50, -100_000, 1_000), { from: 10, to: 10 });
  assert.deepEqual(visibleRows(0, 50, 200, 1_000), { from: 0, to: 0 });
});

test("a mark says nothing where the recordings do not tell", () => {
  assert.equal(describeMark({ base: "x", change_share: 0.123, verdict: "slower" }), `${formatShare(0.123)} slower`);
  assert.equal(describeMark({ base: "x", change_share: 0.4, verdict: "inconclusive" }), "");
});
