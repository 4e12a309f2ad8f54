import assert from "node:assert/strict";
import { test } from "node:test";
import { renderToString } from "preact-render-to-string";
import { EmptyPage } from "../../src/pages/empty";
import { textOf } from "../samples";

test("a logdir without profiles shows rejected files and what was not scanned", () => {
  const scan = { root: "runs", scanned_files: 12, is_complete: false, is_scanning: false };
  const rejected = [{ path: "runs", reason: "the credentials do not allow to list the files." }];
  const gaps = ["there are more than 100,000 files"];
  const text = textOf(renderToString(<EmptyPage list={{ captures: [], rejected, scan: { ...scan, gaps } }} />));
  assert.match(text, /12 files scanned in runs/);
  assert.match(text, /incomplete: there are more than 100,000 files/);
  assert.match(text, /Files not read runs The credentials do not allow to list the files/);
  const refused = textOf(renderToString(<EmptyPage list={{ captures: [], rejected, scan: { ...scan, gaps: [] } }} />));
  assert.doesNotMatch(refused, /incomplete:|too large/);
});
