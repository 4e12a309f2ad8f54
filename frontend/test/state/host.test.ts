import assert from "node:assert/strict";
import { test } from "node:test";
import { whenShown } from "../../src/state/host";

test("actions of a hidden tab wait until it is visible", () => {
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
