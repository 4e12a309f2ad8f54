// Which pages the navigation shows.
import assert from "node:assert/strict";
import { test } from "node:test";
import { capturePage, shownPages } from "../../src/pages/registry";
import type { Capture } from "../../src/state/answers";
import { readSample } from "../samples";

const REPORT = readSample("healthy");
const namesWith = (available_views: string[], capture: Partial<Capture> = {}): string[] =>
  shownPages(capture as Capture, { ...REPORT, available_views }).map(({ name }) => name);

test("pages follow the views of the report", () => {
  assert.deepEqual(namesWith([]), ["report"]);
  assert.deepEqual(namesWith(["serving", "steps"]), ["report", "steps", "serving"]);
  assert.deepEqual(namesWith(["snapshot", "ranks"]), ["report", "memory", "ranks"]);
  assert.deepEqual(namesWith(["unheard-of"]), ["report"]);
});

test("pages about the run follow the capture", () => {
  assert.deepEqual(namesWith([], { has_scalars: true, recordings: 2 }), ["report", "training"]);
  assert.deepEqual(namesWith([], { has_scalars: false, recordings: 1 }), ["report"]);
});

test("without a report, pages with views wait for it", () => {
  const shown = shownPages({ has_scalars: true } as Capture, null);
  assert.deepEqual(shown.map(({ name }) => name), ["report", "training"]);
});

test("an unknown name in a link leads to the report", () => {
  assert.equal(capturePage("steps").name, "steps");
  assert.equal(capturePage("nonsense").name, "report");
});
