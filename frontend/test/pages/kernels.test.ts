import assert from "node:assert/strict";
import { test } from "node:test";
import { usedRoofs } from "../../src/charts/roofline-chart";
import { describeProduct } from "../../src/pages/kernels";
import type { KernelPoint, KernelsView } from "../../src/report";

test("only roofs of used number formats are drawn, highest first", () => {
  const point = (format: string): KernelPoint => ({ format, flop_per_byte: 1, flop_per_s: 1 }) as KernelPoint;
  const roof = (format: string, peak: number) => ({ format, peak_flop_per_s: peak, achievable_flop_per_s: peak });
  const view = {
    roofs: [roof("fp32", 1), roof("fp64", 9), roof("bf16", 5)],
    points: [point("fp32"), point("bf16"), { ...point("fp64"), flop_per_s: null }],
  } as unknown as KernelsView;
  assert.deepEqual(usedRoofs(view).map(({ format }) => format), ["bf16", "fp32"]);
});

test("matrix products show their sizes", () => {
  assert.equal(describeProduct([1, 4096, 1024, 512]), "4,096 × 1,024 × 512");
  assert.equal(describeProduct([8, 2, 3, 4]), "8 × (2 × 3 × 4)");
  assert.equal(describeProduct(null), null);
});
