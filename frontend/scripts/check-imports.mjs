// Checks the imports among the modules of src/: no circles, and no import of a higher layer.
// It reads the source text because esbuild drops imports of types.
import { readFile, readdir } from "node:fs/promises";
import { dirname, join, normalize } from "node:path/posix";

const SOURCES = new URL("../src/", import.meta.url);
/** Each layer imports only from itself and from those above it in this list. */
const LAYERS = ["base", "state", "charts", "widgets", "timeline", "findings", "pages", "entry"];
const ENTRY = new Set(["app.tsx", "index.tsx"]);

const files = (await readdir(SOURCES, { recursive: true }))
  .map((name) => name.replaceAll("\\", "/"))
  .filter((name) => /\.tsx?$/.test(name) && !name.endsWith(".d.ts"))
  .sort();

const layerOf = (file) => (ENTRY.has(file) ? "entry" : file.includes("/") ? file.split("/")[0] : "base");

async function readImports(file) {
  const text = await readFile(new URL(file, SOURCES), "utf8");
  const specifiers = [...text.matchAll(/\bfrom "(\.[^"]+)"/g)].map(([, specifier]) => specifier);
  return specifiers.map((specifier) => {
    const path = normalize(join(dirname(file), specifier));
    const imported = [`${path}.ts`, `${path}.tsx`, path].find((name) => files.includes(name));
    if (!imported && !specifier.endsWith(".css")) throw new Error(`${file} imports ${specifier}, which is not there`);
    return imported;
  }).filter(Boolean);
}

const imports = new Map();
for (const file of files) imports.set(file, await readImports(file));

const problems = [];
for (const [file, imported] of imports) {
  const layer = LAYERS.indexOf(layerOf(file));
  if (layer < 0) problems.push(`src/${file}: "${layerOf(file)}" is not one of the layers ${LAYERS.join(", ")}`);
  for (const other of imported) {
    if (LAYERS.indexOf(layerOf(other)) > layer) problems.push(`src/${file} imports ${other}, which is in a higher layer`);
  }
}

const finished = new Set();
function findCircles(file, path) {
  const start = path.indexOf(file);
  if (start >= 0) problems.push(`circle: ${[...path.slice(start), file].join(" -> ")}`);
  if (start >= 0 || finished.has(file)) return;
  for (const other of imports.get(file)) findCircles(other, [...path, file]);
  finished.add(file);
}
for (const file of files) findCircles(file, []);

for (const problem of problems) console.error(problem);
process.exitCode = problems.length > 0 ? 1 : 0;
