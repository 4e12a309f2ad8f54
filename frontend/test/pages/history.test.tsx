import assert from "node:assert/strict";
import { test } from "node:test";
import { causesOf, describeMoment, historyBars, momentLabels } from "../../src/charts/history-chart";
import { describeOccurrence } from "../../src/pages/history";
import type { ComparedRun, History, Occurrence, Recording } from "../../src/report";

function recording(recorded: string, step: number | null, parts: [cause: string, perStepNs: number][]): Recording {
  const causes = parts.map(([cause, ns]) => ({ cause, label: cause.toUpperCase(), per_step_ns: ns }));
  return {
    run: { id: recorded, name: `run / ${recorded}` } as ComparedRun,
    recorded,
    moment: { step, usual_step_ns: null },
    causes,
    verdict: null,
    headline: "",
    change: null,
    open_findings: [],
  };
}

const history = (...recordings: Recording[]): History => ({ name: "run", verdict: null, headline: "", recordings, findings: [] });

test("labels have the time, the date where it changes, and the step where it is known", () => {
  const days = history(
    recording("2026_11_22_23_50_01.100", 1_000, []),
    recording("2026_11_23_00_10_02", 2_000, []),
    recording("2026_11_23_00_30_03", null, []),
    recording("", null, []),
  );
  assert.deepEqual(momentLabels(days), [
    "1\n23:50\n2026-11-22\nstep 1,000",
    "2\n00:10\n2026-11-23\nstep 2,000",
    "3\n00:30",
    "4",
  ]);
});

test("seconds tell apart what was recorded within a minute", () => {
  const fast = history(recording("2026_11_22_23_50_01", null, []), recording("2026_11_22_23_50_31", null, []));
  assert.deepEqual(momentLabels(fast), ["1\n23:50:01\n2026-11-22", "2\n23:50:31"]);
});

test("bars are split by cause, and the legend begins with the longest", () => {
  const shown = history(
    recording("2026_11_22_23_50_01", null, [["compute-32", 60], ["input", 40]]),
    recording("2026_11_22_23_51_01", null, []),
    recording("2026_11_22_23_52_01", null, [["compute-32", 60], ["input", 90]]),
  );
  assert.deepEqual(
    historyBars(shown).map(({ number, cause, perStepNs }) => [number, cause, perStepNs]),
    [["1", "compute-32", 60], ["1", "input", 40], ["3", "compute-32", 60], ["3", "input", 90]],
  );
  assert.deepEqual(causesOf(shown).map(({ cause }) => cause), ["input", "compute-32"]);
});

test("a moment names the recording where no time is known", () => {
  assert.equal(describeMoment(recording("2026_11_22_23_50_01", 900, []), 2), "2 · 2026-11-22 23:50:01 · step 900");
  assert.equal(describeMoment(recording("", null, []), 1), "1 · run / ");
});

const occurrence = (absent: number | null, first: number, gone: number | null): Occurrence => ({
  absent_before: absent, first, last: first, gone, saving: null, verdict: null, change: null,
});

test("an occurrence says only what was checked", () => {
  assert.equal(describeOccurrence(occurrence(null, 0, null)), "There from the start, still there");
  assert.equal(describeOccurrence(occurrence(0, 2, 3)), "Came with no. 3, gone with no. 4");
  assert.equal(describeOccurrence(occurrence(null, 1, null)), "First seen in no. 2, still there");
});
