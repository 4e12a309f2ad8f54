import assert from "node:assert/strict";
import { test } from "node:test";
import { sessionName } from "../src/text";

test("the name of a session's folder is shown as a time", () => {
  assert.equal(sessionName("2026_11_21_04_09_05.012"), "2026-11-21 04:09:05");
  assert.equal(sessionName("my_session"), "my_session");
});
