import assert from "node:assert/strict";
import { test } from "node:test";
import { parseAnswer } from "../../src/state/answer-text";

test("names cannot turn the text around them", () => {
  const names = { kernel: "a\u202eb", tags: ["\u2067c", "d\u200f"], count: 3, none: null };
  const shown = { kernel: "a\ufffdb", tags: ["\ufffdc", "d\ufffd"], count: 3, none: null };
  assert.deepEqual(parseAnswer(JSON.stringify(names)), shown);
});

test("other text stays as it is", () => {
  const text = "n\u00e9v \u540d \u05d0 \ud834\udd1e \u001b \\u202e";
  assert.equal(parseAnswer(JSON.stringify(text)), text);
});
