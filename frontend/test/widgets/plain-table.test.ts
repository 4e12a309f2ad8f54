import assert from "node:assert/strict";
import { test } from "node:test";
import { isNumeric } from "../../src/widgets/plain-table";

test("columns of numbers are those with a unit, or with numbers only", () => {
  const column = (unit: string) => ({ key: "a", label: "A", unit });
  assert.equal(isNumeric(column("ns"), [[null]], 0), true);
  assert.equal(isNumeric(column(""), [[3], [null]], 0), true);
  assert.equal(isNumeric(column(""), [["text"], [null]], 0), false);
  assert.equal(isNumeric(column(""), [[null], [null]], 0), false);
});
