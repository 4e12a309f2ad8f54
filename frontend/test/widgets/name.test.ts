import assert from "node:assert/strict";
import { test } from "node:test";
import { namePieces, shortKernelName } from "../../src/widgets/name";

test("names break after separators of words and lose nothing", () => {
  assert.deepEqual(namePieces("void at::native::vectorized_elementwise<4>"), [
    "void at::", "native::", "vectorized_", "elementwise<", "4>",
  ]);
  // Not inside numbers.
  assert.deepEqual(namePieces("net.forward takes 45.5 ms"), ["net.", "forward takes 45.5 ms"]);
  const long = "a_".repeat(10_000);
  assert.equal(namePieces(long).join(""), long);
  assert.equal(namePieces(long).length, 81);
  assert.deepEqual(namePieces(""), []);
});

test("kernel names lose their return type and namespaces", () => {
  assert.equal(
    shortKernelName("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 2>(float*)"),
    "CatArrayBatchedCopy<float, 2>(float*)",
  );
  assert.equal(shortKernelName("void cub::Sort<c10::BFloat16>(at::Tensor)"), "Sort<BFloat16>(Tensor)");
  assert.equal(
    shortKernelName("Eigen::internal::EigenMetaKernel<Eigen::TensorEvaluator<Eigen::half> >"),
    "EigenMetaKernel<TensorEvaluator<half> >",
  );
  // Operators and files keep their names.
  assert.equal(shortKernelName("aten::add"), "aten::add");
  assert.equal(shortKernelName("at::native::add"), "at::native::add");
});
