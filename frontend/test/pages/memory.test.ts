import assert from "node:assert/strict";
import { test } from "node:test";
import { describeBatchRoom } from "../../src/pages/memory";

test("the batch that fits is a range", () => {
  assert.match(describeBatchRoom({ low: 2.04, high: 3.5 }), /^A batch of 2.0 to 3.5 times the size/);
  assert.match(describeBatchRoom({ low: 0.8, high: 1.2 }), /^A batch of 1.0 to 1.2 times the size/);
  assert.match(describeBatchRoom({ low: 2, high: 2.01 }), /^A batch of 2.0 times the size/);
  assert.match(describeBatchRoom({ low: 0.5, high: 0.9 }), /^A smaller batch/);
});
