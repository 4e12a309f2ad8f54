import assert from "node:assert/strict";
import { test } from "node:test";
import { namePieces } from "../../src/widgets/name";

test("names break after separators of words and lose nothing", () => {
  assert.deepEqual(namePieces("void at::native::vectorized_elementwise<4>"), [
    "void at::", "native::", "vectorized_", "elementwise<", "4>",
  ]);
  const long = "a_".repeat(10_000);
  assert.equal(namePieces(long).join(""), long);
  assert.equal(namePieces(long).length, 81);
  assert.deepEqual(namePieces(""), []);
});
