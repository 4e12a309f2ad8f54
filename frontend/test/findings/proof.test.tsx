// What trying a change showed stands on its finding.
import assert from "node:assert/strict";
import { test } from "node:test";
import { renderToString } from "preact-render-to-string";
import { readSample, textOf } from "../samples";
import { Finding } from "../../src/findings/finding";
import type { ProofInfo } from "../../src/report";

const PROOF: ProofInfo = {
  change: "loader-workers",
  helped: true,
  text: "proved: 18 % faster (16–20 %, 95 %)",
  low_share: 0.16,
  share: 0.18,
  high_share: 0.2,
  pairs: 6,
  tried_unix_s: 1_700_000_000,
};

const rendered = (proof: ProofInfo | null): string => {
  const report = readSample("train");
  const [first] = report.findings;
  assert(first);
  return renderToString(
    <Finding id="1" finding={{ ...first, proof }} report={report} fullShare={1} canCombine captureId="a" />,
  );
};

test("a proof is shown beside the title", () => {
  assert.match(textOf(rendered(PROOF)), /proved: 18 % faster \(16–20 %, 95 %\)/);
  assert.match(rendered(PROOF), /class="proof proof-helped"/);
  assert.match(rendered(PROOF), /6 pairs of runs/);
});

test("what did not help looks different", () => {
  const html = rendered({ ...PROOF, helped: false, text: "did not help here" });
  assert.match(html, /class="proof proof-in-vain"/);
  assert.match(textOf(html), /did not help here/);
});

test("findings that were not tried say nothing of it", () => {
  assert.doesNotMatch(rendered(null), /class="proof/);
});
