// Addresses of earlier versions.
import assert from "node:assert/strict";
import { test } from "node:test";
import { capturePage } from "../../src/pages/registry";
import { movedTo } from "../../src/state/moved";

test("each page of earlier versions is a part of a page of today", () => {
  const capture = ["kernels", "operators", "calls", "parallelism", "steps", "history", "training"];
  const places = capture.map((view) => movedTo({ view })?.view ?? "");
  assert.deepEqual(places, ["device", "host", "host", "ranks", "time", "time", "time"]);
  for (const place of places) assert.equal(capturePage(place).name, place);
  assert.deepEqual(["rules", "files"].map((view) => movedTo({ view })?.view), ["about", "about"]);
});

test("what was shown of the host is shown", () => {
  assert.deepEqual(movedTo({ view: "operators", by: "line" }), { view: "host", as: "table" });
  assert.deepEqual(movedTo({ view: "calls" }), { view: "host", as: "tree" });
  assert.deepEqual(movedTo({ view: "calls", "of.as": "flames" }), { view: "host", as: "flames", "of.as": "" });
});

test("addresses of today stay", () => {
  for (const view of ["", "host", "time", "about", "runs", "nonsense"]) assert.equal(movedTo({ view }), null);
  assert.equal(movedTo({}), null);
});
