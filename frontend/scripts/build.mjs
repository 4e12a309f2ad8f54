// Bundles src/index.tsx into tb_perfadvisor/static/; with --check, compares only.
import { mkdir, readFile, readdir, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const ROOT = new URL("../", import.meta.url);
const TARGET = new URL("../../tb_perfadvisor/static/", import.meta.url);

const result = await build({
  absWorkingDir: fileURLToPath(ROOT),
  entryPoints: ["src/index.tsx"],
  outfile: "index.js",
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  charset: "utf8",
  jsx: "automatic",
  jsxImportSource: "preact",
  // Include the style sheet in the module: one request, and no flash of unstyled text.
  loader: { ".css": "text" },
  plugins: [{ name: "minified-css", setup: minifyCss }],
  // The licenses of bundled packages go to licenses.txt.
  legalComments: "none",
  metafile: true,
  write: false,
});

function minifyCss({ onLoad }) {
  onLoad({ filter: /\.css$/ }, async ({ path }) => {
    const css = await build({
      entryPoints: [path],
      minify: true,
      charset: "utf8",
      target: "es2022",
      write: false,
    });
    return { contents: css.outputFiles[0].text.trimEnd(), loader: "text" };
  });
}

/** The name, version and license text of each bundled package. */
async function collectLicenses(inputs) {
  const folders = new Map();
  for (const input of inputs) {
    const match = /^(.*\/)?node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
    if (match) folders.set(match[2], new URL(match[0], ROOT));
  }
  const parts = ["Licenses of the packages bundled in index.js."];
  for (const [name, folder] of [...folders].sort(([a], [b]) => (a < b ? -1 : 1))) {
    const { version, license } = JSON.parse(await readFile(new URL("package.json", folder), "utf8"));
    const file = (await readdir(folder)).find((entry) => /^licen[cs]e/i.test(entry));
    // A package that does not contain its license has it here.
    const url = file ? new URL(file, folder) : new URL(`licenses/${name}.txt`, ROOT);
    const text = (await readFile(url, "utf8").catch(() => "")).trim();
    if (!text) throw new Error(`${name} ${version} has no license text, so it cannot be bundled`);
    parts.push(`${name} ${version} (${license})\n\n${text}`);
  }
  return parts.join(`\n\n${"-".repeat(72)}\n\n`).replaceAll("\r\n", "\n") + "\n";
}

const outputs = {
  "index.js": result.outputFiles[0].text,
  "licenses.txt": await collectLicenses(Object.keys(result.metafile.inputs)),
};
await mkdir(TARGET, { recursive: true });
for (const [name, text] of Object.entries(outputs)) {
  const path = new URL(name, TARGET);
  if (process.argv.includes("--check")) {
    if ((await readFile(path, "utf8").catch(() => "")) !== text) {
      console.error(`static/${name} is stale: run \`npm run build\`.`);
      process.exitCode = 1;
    }
  } else {
    await writeFile(path, text);
    console.log(`static/${name}  ${(Buffer.byteLength(text) / 1024).toFixed(0)} KiB`);
  }
}
