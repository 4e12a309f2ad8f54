import assert from "node:assert/strict";
import { test } from "node:test";

// The window around the tab, whose URL has the state; history changes it as a browser does.
const location = { href: "http://host/#perf_advisor", hash: "#perf_advisor", search: "" };
const history = {
  state: null,
  entries: 1,
  replaceState: (_: unknown, __: string, hash: string) => void (location.hash = hash),
  pushState(_: unknown, __: string, hash: string) {
    location.hash = hash;
    this.entries += 1;
  },
};
const host = { location, history };
Object.assign(globalThis, { window: Object.assign(host, { parent: host }) });

const { addressOf, forgottenBelow, link, writePlace, writeState } = await import("../../src/state/link");
const { readLink } = await import("../../src/state/host");
const { nameInLink, rowNames, slug } = await import("../../src/state/linked");

function begin(values: Record<string, string>): void {
  location.hash = "#perf_advisor";
  writePlace(values);
  link.value = readLink();
}

test("changing a value forgets what is below it, and nothing else", () => {
  begin({ capture: "a", kernel: "one", "kernel.zoom": "1-2", kernels: "x" });
  writeState({ kernel: "two" });
  assert.deepEqual(link.value, { capture: "a", kernel: "two", kernels: "x" });
  writeState({ "kernel.zoom": "3-4" });
  writeState({ kernel: "two" });
  assert.deepEqual(link.value, { capture: "a", kernel: "two", kernels: "x", "kernel.zoom": "3-4" });
  assert.deepEqual(forgottenBelow("kernel"), { "kernel.zoom": "" });
});

test("another place has none of the state of this one, and keeps what the user said about the run", () => {
  begin({ capture: "a", view: "kernels", price: "2.5", "all-kernels.sort": "-share" });
  assert.equal(
    addressOf({ view: "steps" }),
    "http://host/#perf_advisor&p.perf_advisor.capture=a&p.perf_advisor.price=2.5&p.perf_advisor.view=steps",
  );
});

test("state replaces the current entry of the history, places add one, and fast changes wait for each other", () => {
  begin({ capture: "a" });
  const { entries } = history;
  for (let number = 0; number < 50; number += 1) writeState({ zoom: `${number}` });
  assert.equal(link.value.zoom, "49");
  assert.equal(history.entries, entries);
  // The last state is written before the place is left, so that Back finds it.
  writePlace({ view: "rules" });
  assert.equal(history.entries, entries + 1);
  assert.deepEqual(readLink(), { capture: "a", view: "rules" });
});

test("rows have names that do not change with their order", () => {
  const kernel = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>";
  const names = rowNames(["aten::mm", kernel, kernel], (name) => name);
  assert.deepEqual(names, ["aten::mm", nameInLink(kernel), `${nameInLink(kernel)}~2`]);
  assert.match(nameInLink(kernel), /^[a-z0-9]{4,7}$/);
  assert.equal(slug("Lines whose memory at the peak changed"), "lines-whose-memory-at-the-peak-changed");
});
