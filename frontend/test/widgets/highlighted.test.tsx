import assert from "node:assert/strict";
import { test } from "node:test";
import { renderToString } from "preact-render-to-string";
import { Highlighted } from "../../src/widgets/highlighted";

const LOADER = `loader = DataLoader(
    dataset, batch_size=batch_size,
    num_workers=4,  # it's "enough"
    pin_memory=x.is_cuda, shape=(1, 2)
)
if loader == "a" and step % 100 == 0: pass
`;

const draw = (text: string, marksArguments = false): string =>
  renderToString(<Highlighted text={text} marksArguments={marksArguments} />);

const decode = (html: string): string =>
  html.replace(/<[^>]*>/g, "").replaceAll("&quot;", '"').replaceAll("&lt;", "<").replaceAll("&amp;", "&");

test("syntax colors leave the text as it is", () => {
  assert.equal(decode(draw(LOADER)), LOADER);
  assert.equal(decode(draw("a < b <script>&")), "a < b <script>&");
  assert.doesNotMatch(draw("<script>"), /<script>/);
});

test("keywords, strings and comments have colors", () => {
  const html = draw(LOADER);
  assert.match(html, /<span class="code-keyword">if<\/span>/);
  assert.match(html, /<span class="code-comment"># it's .*enough.*<\/span>/);
  assert.match(html, /<span class="code-string">&quot;a&quot;<\/span>/);
});

test("arguments that the code sets are marked, those that it passes on are not", () => {
  const marks = [...draw(LOADER, true).matchAll(/<mark>(.*?)<\/mark>/g)].map(([, html]) => decode(html ?? ""));
  assert.deepEqual(marks, ["num_workers=4", "pin_memory=x.is_cuda", "shape=(1, 2)"]);
  assert.equal(decode(draw(LOADER, true)), LOADER);
});
