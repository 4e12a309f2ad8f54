// Bundles each test (node reads no TSX) and hands them to node's own test runner.
import { spawnSync } from "node:child_process";
import { rm } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { readdir } from "node:fs/promises";

const ROOT = fileURLToPath(new URL("../", import.meta.url));
const OUTPUT = "node_modules/.cache/test";

const tests = (await readdir(new URL("../test/", import.meta.url)))
  .filter((name) => /\.test\.tsx?$/.test(name))
  .sort();
await rm(new URL(`../${OUTPUT}`, import.meta.url), { recursive: true, force: true });
await build({
  absWorkingDir: ROOT,
  entryPoints: tests.map((name) => `test/${name}`),
  outdir: OUTPUT,
  outExtension: { ".js": ".mjs" },
  bundle: true,
  platform: "node",
  format: "esm",
  target: "node20",
  // The tests must share one preact with the renderer.
  external: ["preact", "preact/*", "@preact/signals", "preact-render-to-string"],
  jsx: "automatic",
  jsxImportSource: "preact",
  loader: { ".css": "text" },
  sourcemap: "inline",
});
const files = tests.map((name) => `${OUTPUT}/${name.replace(/\.tsx?$/, ".mjs")}`);
const { status } = spawnSync(
  process.execPath,
  ["--enable-source-maps", "--test", ...process.argv.slice(2), ...files],
  { cwd: ROOT, stdio: "inherit" },
);
process.exitCode = status ?? 1;
