// Serves the built tab with sample reports at the URLs that TensorBoard uses, on loopback only.
// `npm run dev`, then open the printed URL (with ?dark for dark mode).
import { createServer } from "node:http";
import { readFile, readdir } from "node:fs/promises";

const PORT = Number(process.env.PORT ?? 6160);
const STATIC = new URL("../../tb_perfadvisor/static/", import.meta.url);
const SAMPLES = new URL("samples/", import.meta.url);
const PLUGIN = "/data/plugin/perf_advisor";

const HOST_PAGE = `<!doctype html><title>TensorBoard</title>
<style>html,body{margin:0;height:100%}iframe{border:0;width:100%;height:100%;display:block}</style>
<body><iframe title="Perf Advisor" src="data/plugin_entry.html?name=perf_advisor"></iframe>`;
const ENTRY_PAGE = `<!doctype html><head><base href="plugin/perf_advisor/"></head><body>
<script type="module">import("./static/index.js").then((tab) => tab.render());</script>`;

const readJson = async (name) => JSON.parse(await readFile(new URL(name, SAMPLES), "utf8"));

/** Made-up events that look like a step, plus the events of the findings' evidence. */
function makeWindow(query, report) {
  const [from, to] = [Number(query.get("from_ns")), Number(query.get("to_ns"))];
  const span = to - from;
  const tracks = [
    { label: "python main thread", kind: "host", device: null },
    { label: "autograd thread", kind: "host", device: null },
    { label: "GPU 0, stream 7", kind: "device", device: 0 },
    { label: "GPU 0, stream 20 (NCCL)", kind: "device", device: 0 },
  ];
  const events = [];
  const add = (track, start, length, name, kind) =>
    events.push({
      track,
      start_ns: Math.round(from + start * span),
      duration_ns: Math.max(1, Math.round(length * span)),
      name,
      kind,
    });
  add(0, 0, 0.22, "ProfilerStep#4", "step");
  add(0, 0.02, 0.1, "Optimizer.step#AdamW.step", "annotation");
  add(0, 0.03, 0.05, "aten::_foreach_addcdiv_", "operator");
  add(0, 0.04, 0.02, "cudaLaunchKernel", "launch");
  add(0, 0.13, 0.08, "Optimizer.zero_grad#AdamW.zero_grad", "annotation");
  add(0, 0.23, 0.77, "ProfilerStep#5", "step");
  for (let index = 0; index < 9; index += 1) {
    add(0, 0.77 + index * 0.025, 0.022, "aten::linear", "operator");
    add(0, 0.775 + index * 0.025, 0.008, "cudaLaunchKernel", "launch");
    add(2, 0.79 + index * 0.023, 0.021, "ampere_bf16_s16816gemm_bf16_128x128", "kernel");
  }
  for (let index = 0; index < 14; index += 1) {
    add(2, index * 0.016, 0.014, "multi_tensor_apply_kernel", "kernel");
  }
  add(1, 0, 0.05, "autograd::engine::evaluate_function: AddmmBackward0", "operator");
  add(3, 0, 0.09, "ncclDevKernel_AllReduce_Sum_f16_RING_LL", "collective");
  for (const { evidence } of report?.findings ?? []) {
    for (const row of evidence.flatMap((item) => (item.kind === "events" ? item.rows : []))) {
      if (row.start_ns >= to || row.start_ns + row.duration_ns <= from) continue;
      const device = /kernel|nccl|Memcpy/i.test(row.name);
      const { start_ns, duration_ns, name } = row;
      const kind = /nccl/.test(name) ? "collective" : device ? "kernel" : "input_wait";
      events.push({ track: device ? 2 : 0, start_ns, duration_ns, name, kind });
    }
  }
  events.sort((a, b) => a.start_ns - b.start_ns);
  return { worker: Number(query.get("worker")), from_ns: from, to_ns: to, tracks, events, claims: [[from + span / 4, from + (span * 3) / 4]], truncated: 118 };
}

async function answer(path, query, method) {
  if (path === "captures") return [200, await readJson(`${process.env.CAPTURES ?? "captures"}.json`)];
  if (path === "doctor") return [200, { scan: {}, rejected: [], notes: [] }];
  const rule = /^rules\/([\w-]+)$/.exec(path);
  if (rule) {
    const page = await readFile(new URL("rule.md", SAMPLES), "utf8");
    return [200, { id: rule[1], title: rule[1], page }];
  }
  const [, id, rest] = /^captures\/([\w-]+)\/(.+)$/.exec(path) ?? [];
  if (id === undefined) return [404, { error: { message: "No such route", where: path, hint: "" } }];
  if (rest === "cancel" && method === "POST") return [200, {}];
  const names = new Set(await readdir(SAMPLES));
  const report = names.has(`${id}.report.json`) ? await readJson(`${id}.report.json`) : null;
  if (rest === "row") {
    const { captures } = await readJson(`${process.env.CAPTURES ?? "captures"}.json`);
    return [200, captures.find((capture) => capture.id === id)];
  }
  if (rest === "report") {
    if (report) return [200, report];
    if (names.has(`${id}.error.json`)) return [422, await readJson(`${id}.error.json`)];
    return [202, { status: "running", stage: "Reading worker 3 of 8", progress: 0.42, queue_position: null }];
  }
  if (rest === "views/steps" && names.has(`${id}.steps.json`)) return [200, await readJson(`${id}.steps.json`)];
  if (rest === "window") return [200, makeWindow(query, report)];
  return [404, { error: { message: "This sample does not have it", where: path, hint: "" } }];
}

const server = createServer(async ({ url, method }, response) => {
  const { pathname, searchParams } = new URL(url, "http://localhost");
  const send = (status, type, body) => {
    response.writeHead(status, { "Content-Type": type, "X-Content-Type-Options": "nosniff" });
    response.end(body);
  };
  if (pathname === "/") {
    const isDark = searchParams.has("dark");
    return send(200, "text/html", HOST_PAGE.replace("<body>", isDark ? '<body class="dark-mode">' : "<body>"));
  }
  if (pathname === "/data/plugin_entry.html") return send(200, "text/html", ENTRY_PAGE);
  try {
    if (pathname === `${PLUGIN}/static/index.js`) {
      return send(200, "text/javascript", await readFile(new URL("index.js", STATIC)));
    }
    if (pathname.startsWith(`${PLUGIN}/api/v1/`)) {
      const path = pathname.slice(`${PLUGIN}/api/v1/`.length);
      const [status, body] = await answer(path, searchParams, method);
      return send(status, "application/json", JSON.stringify(body));
    }
  } catch (error) {
    return send(500, "application/json", JSON.stringify({ error: { message: String(error), where: "", hint: "" } }));
  }
  return send(404, "text/plain", "not found");
});
server.listen(PORT, "127.0.0.1", () => console.log(`http://127.0.0.1:${PORT}/  (or /?dark)`));
