import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { renderToString } from "preact-render-to-string";
import { Markdown, Prose } from "../../src/widgets/prose";

test("text of a trace never becomes HTML", () => {
  const evil = "<img src=x onerror=alert(1)> `</code><script>`";
  const html = renderToString(<Prose text={evil} />) + renderToString(<Markdown text={evil} />);
  assert.doesNotMatch(html, /<img|<script/);
  const link = renderToString(<Markdown text="[a](javascript:alert) and [b](https://x.org/)" />);
  assert.doesNotMatch(link, /href="javascript/);
  assert.match(link, /href="https:\/\/x\.org\/"/);
});

test("a number and its unit stay on one line", () => {
  const text = "3.67 ms of 1.50 GiB at 450 GB/s, 12.5 TFLOP/s, 7 steps (48.7 %)";
  const expected = "3.67\u00a0ms of 1.50\u00a0GiB at 450\u00a0GB/s, 12.5\u00a0TFLOP/s, 7 steps (48.7\u00a0%)";
  assert.equal(renderToString(<Prose text={text} />), expected);
});

test("Markdown pages have headings, lists, code and tables", () => {
  const html = renderToString(<Markdown text={readFileSync("dev/samples/rule.md", "utf8")} />);
  assert.equal(html.match(/<h2>/g)?.length, 3);
  assert.equal(html.match(/<li>/g)?.length, 2);
  assert.match(html, /<pre[^>]*><code>loader = <span class="code-class">DataLoader<\/span>\(dataset, num_workers=<span class="code-class">0<\/span>\)<\/code><\/pre>/);
  assert.match(html, /<th scope="col">limit<\/th>/);
});
