import assert from "node:assert/strict";
import { test } from "node:test";
import { renderToString } from "preact-render-to-string";
import { EmptyPage } from "../../src/pages/empty";
import { UnreadFiles } from "../../src/pages/about/unread-files";
import { textOf } from "../samples";

test("a logdir without profiles shows rejected files and what was not scanned", () => {
  const scan = { root: "runs", scanned_files: 12, is_complete: false, is_scanning: false };
  const rejected = [{ path: "runs", reason: "the credentials do not allow to list the files." }];
  const gaps = ["there are more than 100,000 files"];
  const text = textOf(renderToString(<EmptyPage list={{ captures: [], rejected, rejected_count: 1, scan: { ...scan, gaps } }} />));
  assert.match(text, /12 files scanned in runs/);
  assert.match(text, /incomplete: there are more than 100,000 files/);
  assert.match(text, /Files not read File Reason runs The credentials do not allow to list the files/);
  const refused = textOf(renderToString(<EmptyPage list={{ captures: [], rejected, rejected_count: 1, scan: { ...scan, gaps: [] } }} />));
  assert.doesNotMatch(refused, /incomplete:|too large/);
});

test("of many files that were not read, the first are shown, and how many there are", () => {
  const rejected = Array.from({ length: 100 }, (_, place) => ({ path: `f${place}.pt.trace.json`, reason: "it is empty." }));
  const text = textOf(renderToString(<UnreadFiles rejected={rejected} rejected_count={110_000} />));
  assert.match(text, /110,000/);
  assert.match(text, /f99\. pt\. trace\. json It is empty/);
  assert.match(text, /Show more \(109,900 hidden\)/);
});
