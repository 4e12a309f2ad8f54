import assert from "node:assert/strict";
import { test } from "node:test";
import { makeBars } from "../../src/charts/steps-chart";
import { layOut } from "../../src/charts/timeline-chart";

const event = (track: number, start_ns: number, duration_ns: number, name: string) => ({
  track, start_ns, duration_ns, name, kind: "operator",
});

test("nested events are in lower lanes, and the track of the focused event is first", () => {
  const { boxes, bands, lanes, hidden } = layOut(
    {
      worker: 0,
      from_ns: 0,
      to_ns: 100,
      tracks: [
        { label: "GPU", kind: "device", device: 0 },
        { label: "loader", kind: "host", device: null },
        { label: "main", kind: "host", device: null },
      ],
      events: [
        event(0, 20, 10, "kernel"),
        event(1, 0, 50, "worker"),
        event(2, 0, 90, "step"),
        event(2, 10, 20, "fetch"),
        event(2, 40, 20, "forward"),
      ],
      claims: [],
      truncated: 0,
    },
    { startNs: 10, durationNs: 20, name: "fetch" },
  );
  assert.deepEqual(bands, [
    { label: "main", lane: 0 },
    { label: "loader", lane: 3 },
    { label: "GPU", lane: 5 },
  ]);
  assert.equal(lanes, 7);
  assert.equal(hidden, 0);
  const lane = Object.fromEntries(boxes.map((box) => [box.name, box.lane]));
  assert.deepEqual(lane, { step: 1, fetch: 2, forward: 2, worker: 4, kernel: 6 });
  assert.deepEqual(
    boxes.filter((box) => box.isFocus).map(({ x1, x2 }) => [x1, x2]),
    [[0, 20]],
  );
});

test("events nested too deep are counted as hidden", () => {
  const events = [0, 1, 2, 3, 4, 5, 6].map((depth) => event(0, depth, 50, `f${depth}`));
  const window = {
    worker: 0, from_ns: 0, to_ns: 60, events, claims: [], truncated: 0,
    tracks: [{ label: "main", kind: "host" as const, device: null }],
  };
  const drawn = (name: string, startNs: number) => {
    const { boxes, hidden } = layOut(window, { startNs, durationNs: 50, name });
    return [boxes.map((box) => (box.isFocus ? `[${box.name}]` : box.name)).join(" "), hidden];
  };
  assert.deepEqual(drawn("f0", 0), ["[f0] f1 f2 f3 f4", 2]);
  // What the time line is about is drawn, however deep it lies: its outermost callers are not.
  assert.deepEqual(drawn("f5", 5), ["f1 f2 f3 f4 [f5]", 2]);
  assert.deepEqual(drawn("f6", 6), ["f2 f3 f4 f5 [f6]", 2]);
});

test("neighboring steps share a bar if there are many", () => {
  const index = Array.from({ length: 480 }, (_, step) => step);
  const view = {
    index,
    start_ns: index.map((step) => 11 * step),
    longest: [[]],
    duration_ns: index.map((step) => 10 + (step % 2) * 2),
    causes: ["input"],
    total_ns: [index.map((step) => 10 + (step % 2) * 2)],
  };
  const bars = makeBars(view, () => "Waiting for input");
  assert.equal(bars.length, 240);
  assert.deepEqual(bars[1], {
    label: "2–3", place: 2, cause: "input", causeLabel: "Waiting for input", durationNs: 11, totalNs: 11,
  });
});
