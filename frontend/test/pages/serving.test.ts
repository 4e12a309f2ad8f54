import assert from "node:assert/strict";
import { test } from "node:test";
import { serverBars } from "../../src/charts/serving-chart";
import { describeServing } from "../../src/pages/serving";
import type { ServingKind, ServingView } from "../../src/report";

const DECODE: ServingKind = {
  kind: "decode",
  steps: 3,
  requests: 8.5,
  prefill_tokens: 0,
  decode_tokens: 8.5,
  period_ns: 5_200_000,
  device_ns: 5_000_000,
  tokens_per_s: 1634.6,
  replayed_steps: 3,
  graph_share: 1,
  launches: 0,
  captured_requests: null,
};
const VIEW: ServingView = {
  kinds: [DECODE],
  generated_per_s: 1634.6,
  step_kind: ["decode", "mixed"],
  step_ns: [5_200_000, 20_000_000],
  step_requests: [1, null],
  step_tokens: [1, 1008],
  step_graphs: [1, 0],
  is_device_time: false,
  truncated: 0,
  floor: "",
  phases: [],
};

test("the headline says how long decoding takes, and for how many requests", () => {
  assert.equal(describeServing(VIEW), "Decode steps take 5.20 ms for 8.50 requests");
  const single = { ...DECODE, steps: 1, period_ns: null, requests: 1 };
  assert.equal(describeServing({ ...VIEW, kinds: [single] }), "The decode step takes 5.00 ms on the device for 1 request");
  const prefill = { ...DECODE, kind: "prefill", requests: null };
  assert.equal(describeServing({ ...VIEW, kinds: [prefill] }), "Prefill steps take 5.20 ms");
});

test("each bar tells what is known about its step", () => {
  const [first, second] = serverBars(VIEW);
  assert.equal(first?.title, "Step 1: decode, 5.20 ms\n1 request\n1 token\n1 graph replay");
  assert.equal(second?.title, "Step 2: mixed, 20.0 ms\n1,008 tokens\nno graph replay");
});
