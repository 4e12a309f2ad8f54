import assert from "node:assert/strict";
import { test } from "node:test";
import { layOutFlames } from "../../src/pages/host/flame-graph";
import { headline } from "../../src/pages/host/page";
import { countCalls } from "../../src/pages/host/tree-grid";
import { type CallNode, findCalls, growTree, heaviestPath, invertTree, nodeOf, pathTo } from "../../src/pages/host/tree";
import type { CallTree } from "../../src/report";

// main 100: fetch 60 (sleep 50), step 30 (sleep 10, add 15); 10 of its own. 3 of the step's are left out.
const TREE: CallTree = {
  label: "main thread",
  names: ["main", "fetch", "sleep", "step", "add"],
  parent: [-1, 0, 1, 0, 3, 3],
  name: [0, 1, 2, 3, 2, 4],
  kind: Array<string>(6).fill("python"),
  count: [1, 2, 4, 2, 2, 6],
  total_ns: [100, 60, 50, 30, 10, 15],
  self_ns: [10, 10, 50, 2, 10, 15],
  start_ns: [0, 0, 5, 60, 62, 75],
  duration_ns: [100, 30, 12, 15, 5, 3],
  truncated: 4,
};

const shape = ({ name, totalNs, selfNs, inside }: CallNode): unknown => [name, totalNs, selfNs, ...inside.map(shape)];

test("a tree is largest first, and says what was left out", () => {
  assert.deepEqual(shape(growTree(TREE)), [
    "main thread", 100, 0,
    ["main", 100, 10,
      ["fetch", 60, 10, ["sleep", 50, 50]],
      ["step", 30, 2, ["add", 15, 15], ["sleep", 10, 10], ["smaller calls", 3, 3]]],
  ]);
});

test("inverted, a name has its own time, and below it who calls it", () => {
  const inverted = invertTree(growTree(TREE));
  assert.equal(inverted.totalNs, 100);
  const [sleep, add] = inverted.inside;
  assert.deepEqual(sleep && shape(sleep), [
    "sleep", 60, 60,
    ["fetch", 50, 0, ["main", 50, 0]],
    ["step", 10, 0, ["main", 10, 0]],
  ]);
  assert.deepEqual([add?.name, add?.totalNs], ["add", 15]);
  // Each nanosecond is in one of the names.
  assert.equal(inverted.inside.reduce((sum, { totalNs }) => sum + totalNs, 0), 100);
});

test("a search shows matches with what is around them, and counts time once", () => {
  const top = growTree(TREE);
  const found = findCalls(top, "SLEEP");
  assert.equal(found?.matches.size, 2);
  assert.equal(found?.totalNs, 60);
  assert.deepEqual([...(found?.shown ?? [])].map(({ name }) => name).sort(), ["fetch", "main", "sleep", "sleep", "step"]);
  // `main` contains all of the others.
  assert.equal(findCalls(top, "a")?.totalNs, 100);
  assert.equal(findCalls(top, "  "), null);
});

test("the heaviest path is open at first", () => {
  const top = growTree(TREE);
  const open = [...heaviestPath(top)].map((id) => nodeOf(top, id)?.name);
  assert.deepEqual(open, ["main", "fetch"]);
});

test("flames are as wide as their time, below what is around the root", () => {
  const top = growTree(TREE);
  const all = layOutFlames(top, 1_000);
  assert.deepEqual(
    all.filter(({ depth }) => depth === 1).map(({ node, from, to }) => [node.name, from, to]),
    [["fetch", 0, 0.6], ["step", 0.6, 0.6 + 0.3]],
  );
  const step = nodeOf(top, 3);
  assert.ok(step);
  assert.deepEqual(pathTo(step).map(({ name }) => name), ["main", "step"]);
  const zoomed = layOutFlames(step, 1_000);
  assert.deepEqual(zoomed.slice(0, 3).map(({ node, depth, from, to }) => [node.name, depth, from, to]), [
    ["main", 0, 0, 1],
    ["step", 1, 0, 1],
    ["add", 2, 0, 0.5],
  ]);
  // What is thinner than a pixel is not drawn.
  assert.equal(layOutFlames(top, 5).some(({ node }) => node.name === "smaller calls"), false);
});

test("the headline names what takes the most time itself", () => {
  assert.equal(headline(TREE, 1, "in the recording"), "sleep itself takes 60 ns in the recording (60.0 %) of main thread");
});

test("waiting is no work", () => {
  // The two sleeps are 60 of 100; of the rest, `add` takes most: 15.
  const waiting = (name: string): CallTree => ({
    ...TREE,
    kind: TREE.kind.map((each, id) => (TREE.names[TREE.name[id] ?? 0] === name ? "wait" : each)),
  });
  assert.equal(headline(waiting("sleep"), 1, "per step"), "main thread waits 60 ns per step (60.0 %), and works longest in add");
  // 15 of 100 are no reason to say so.
  assert.equal(headline(waiting("add"), 1, "per step"), "sleep itself takes 60 ns per step (60.0 %) of main thread");
});

test("calls are counted per step, like times, and in all where steps do without them", () => {
  const [main] = growTree(TREE).inside;
  const [fetch] = main?.inside ?? [];
  assert.equal(main && countCalls(main, 2), "1 in all");
  assert.equal(fetch && countCalls(fetch, 2), "1");
  assert.equal(fetch && countCalls(fetch, 1), "2");
});
