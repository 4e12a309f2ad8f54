// Bundles each test, as node does not read TSX, and runs them with node's test runner.
import { spawnSync } from "node:child_process";
import { readdir, rm } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const ROOT = fileURLToPath(new URL("../", import.meta.url));
// Not below node_modules, where newer Nodes find no tests.
const OUTPUT = "build/test";

const tests = (await readdir(new URL("../test/", import.meta.url), { recursive: true }))
  .map((name) => name.replaceAll("\\", "/"))
  .filter((name) => /\.test\.tsx?$/.test(name))
  .sort();
await rm(new URL(`../${OUTPUT}`, import.meta.url), { recursive: true, force: true });
await build({
  absWorkingDir: ROOT,
  entryPoints: tests.map((name) => `test/${name}`),
  outbase: "test",
  outdir: OUTPUT,
  outExtension: { ".js": ".mjs" },
  bundle: true,
  platform: "node",
  format: "esm",
  target: "node20",
  // The tests and the renderer must share one preact.
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
