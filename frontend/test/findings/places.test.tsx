import assert from "node:assert/strict";
import { test } from "node:test";
import { renderToString } from "preact-render-to-string";
import { Places } from "../../src/findings/places";
import type { Place } from "../../src/report";
import { textOf } from "../samples";

const place: Place = {
  file: "app/train.py",
  line: 12,
  function: "step",
  source: {
    path: "train.py",
    first_line: 11,
    lines: ["def step(batch):", "    return loss(batch)  # the sum", "", "x = '<b>'"],
    link: "vscode://file/home/me/train.py:12",
    candidates: [],
    note: "",
  },
};
const draw = (change: Partial<Place>): string => renderToString(<Places places={[{ ...place, ...change }]} />);

test("an excerpt shows its lines with their numbers, and which one is meant", () => {
  const html = draw({});
  assert.match(textOf(html), /train\. py:12 in step 11 def step\(batch\):/);
  assert.equal(html.match(/class="place-line( chosen)?"/g)?.length, 4);
  const [chosen] = html.match(/place-line chosen.*?<\/div>/) ?? [];
  assert.match(textOf(chosen ?? ""), / 12 return loss\(batch\) # the sum/);
  assert.match(html, /aria-label="Code at train\.py:12"/);
  assert.match(html, /code-keyword">def<.*code-comment">/);
});

test("the link opens the editor, and code is text, never HTML", () => {
  const html = draw({});
  assert.match(html, /href="vscode:\/\/file\/home\/me\/train\.py:12"[^>]*rel="noopener noreferrer"/);
  assert.doesNotMatch(html, /<b>/);
});

test("a string over several lines keeps its color", () => {
  const lines = ['"""First,', "for example", 'last."""', "pass"];
  const html = draw({ source: { ...place.source!, lines } });
  const [, inside, , after] = html.match(/<div class="place-line.*?<\/div>/g) ?? [];
  assert.match(inside ?? "", /code-string/);
  assert.doesNotMatch(inside ?? "", /code-keyword/);
  assert.match(after ?? "", /code-keyword/);
});

test("without the code, the profile's own name of the place is shown, and why", () => {
  const html = draw({ source: { ...place.source!, path: null, lines: [], link: null, candidates: ["a/train.py", "b/train.py"], note: "2 files match" } });
  assert.match(textOf(html), /app\/ train\. py:12 in step \(2 files match: a\/train\.py, b\/train\.py\)/);
  assert.doesNotMatch(html, /<pre|<a /);
  assert.match(textOf(draw({ source: null, function: "" })), /^\s*app\/ train\. py:12\s*$/);
});
