import assert from "node:assert/strict";
import { test } from "node:test";
import {
  formatBytes,
  formatCell,
  formatCount,
  formatDuration,
  formatDurationRange,
  formatShare,
  formatTick,
  tickLabels,
} from "../src/format";

test("durations have three digits and the same unit as in units.py", () => {
  // The right-hand sides are what tb_perfadvisor.units prints.
  const cases: [number, string][] = [
    [0, "0 ns"],
    [999, "999 ns"],
    [999.5, "1.00 µs"],
    [1_234, "1.23 µs"],
    [99_950, "100 µs"],
    [999_499, "999 µs"],
    [999_500, "1.00 ms"],
    [240_000_000, "240 ms"],
    [-12_340_000, "-12.3 ms"],
    [61_500_000_000, "61.5 s"],
    [100_500_000, "100 ms"], // an exact half goes to the even neighbor, as in Python
    [101_500_000, "102 ms"],
  ];
  for (const [durationNs, text] of cases) assert.equal(formatDuration(durationNs), text);
});

test("missing values are unknown, never 0", () => {
  assert.equal(formatDuration(null), "unknown");
  assert.equal(formatShare(undefined), "unknown");
  assert.equal(formatBytes(Number.NaN), "unknown");
  assert.equal(formatCell(null, "ns"), "–");
});

test("shares", () => {
  assert.equal(formatShare(0), "0.0 %");
  assert.equal(formatShare(0.0004), "< 0.1 %");
  assert.equal(formatShare(-0.0004), "> -0.1 %");
  assert.equal(formatShare(0.1234), "12.3 %");
  assert.equal(formatShare(1), "100.0 %");
});

test("bytes and cells", () => {
  assert.equal(formatBytes(1023), "1023 B");
  assert.equal(formatBytes(1.5 * 2 ** 30), "1.50 GiB");
  assert.equal(formatCell(273_299_064, "bytes/s"), "273 MB/s");
  assert.equal(formatCell(9.89e14, "flop/s"), "989 TFLOP/s");
  assert.equal(formatCell(-7_160, "ns"), "−7.16 µs");
  assert.equal(formatCell(true, ""), "yes");
  assert.equal(formatCount(6120), "6,120");
});

test("the ends of a range are rounded like single durations", () => {
  assert.equal(formatDurationRange(28e6, 54e6), "28.0–54.0 ms");
  assert.equal(formatDurationRange(0, 54e6), "0–54.0 ms");
  assert.equal(formatDurationRange(800e3, 1.2e6), "800 µs – 1.20 ms");
  assert.equal(formatDurationRange(8e6, 8e6), "8.00 ms");
  assert.equal(formatDurationRange(-2e6, 8e6), "−2.00 to 8.00 ms");
  assert.equal(formatDurationRange(-800e3, 1.2e6), "−800 µs to 1.20 ms");
  // An expected value of 1.86 ms is not below this low end.
  assert.equal(formatDurationRange(1.86e6, 16e6), "1.86–16.0 ms");
});

test("axis labels have no trailing zeros", () => {
  assert.equal(formatTick(0, "ns"), "0");
  assert.equal(formatTick(20e6, "ns"), "20 ms");
  assert.equal(formatTick(150e6, "ns"), "150 ms");
  assert.equal(formatTick(1.5e9, "ns"), "1.5 s");
  assert.equal(formatTick(1.25e9, "ns"), "1.25 s");
  assert.equal(formatTick(8 * 1024 ** 2, "bytes"), "8 MiB");
  assert.equal(formatTick(0.1, "share"), "10 %");
  assert.equal(formatTick(1e9, "flop/s"), "1 GFLOP/s");
  assert.equal(formatTick(2500, "count"), "2,500");
});

test("ticks of a narrow range have the digits that tell them apart", () => {
  const ms = 1e6;
  const narrow = tickLabels(189.8 * ms, 190.6 * ms, 5, "ns");
  assert.deepEqual([190, 190.2, 190.4].map((value) => narrow(value * ms)), ["190 ms", "190.2 ms", "190.4 ms"]);
  const wide = tickLabels(0, 200 * ms, 5, "ns");
  assert.deepEqual([0, 50 * ms, 200 * ms].map(wide), ["0", "50 ms", "200 ms"]);
  const before = tickLabels(-0.02 * ms, 0.02 * ms, 4, "ns");
  assert.deepEqual([-0.01 * ms, 0, 0.01 * ms].map((value) => before(value).replace("−", "-")), ["-10 µs", "0", "10 µs"]);
});
