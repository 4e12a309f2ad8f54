import assert from "node:assert/strict";
import { test } from "node:test";
import { usedRoofs } from "../../src/charts/roofline-chart";
import { describeKernels, describeProduct, kernelGroups } from "../../src/pages/device";
import type { KernelGroup, KernelPoint, KernelsView } from "../../src/report";

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

const group = (name: string | null, kernels: number, share: number): KernelGroup => ({
  name, kernels, count: 1, total_ns: 1, share,
});

test("the headline names the family with the most time", () => {
  const view = { families: [group("matmul", 64, 0.292), group("elementwise", 104, 0.25)] } as KernelsView;
  assert.equal(describeKernels(view), "Matrix products: 29.2 % of kernel time, in 64 of 168 kernels");
  assert.equal(describeKernels({ families: [group("copy", 2, 1)] } as KernelsView), "Copies: all of the kernel time, in 2 kernels");
  assert.equal(describeKernels({ families: [] as KernelGroup[] } as KernelsView), "No kernel ran in the used steps");
});

test("kernels are grouped by what tells them apart", () => {
  const view = {
    families: [group("matmul", 1, 0.9), group("other", 1, 0.1)],
    operators: [group(null, 2, 1)],
    modules: [] as KernelGroup[],
  } as KernelsView;
  assert.deepEqual(kernelGroups(view).map(([name]) => name), ["family"]);
});
