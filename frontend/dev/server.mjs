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
  const stepNs = report?.overview.step_time_ns ?? 1e9;
  const [from, to] = [Number(query.get("from_ns")), Number(query.get("to_ns") ?? stepNs)];
  const span = to - from;
  const tracks = [
    ["python main thread", "host", 3],
    ["autograd thread", "host", 1],
    ["GPU 0, stream 7", "device", 1],
    ["GPU 0, stream 20 (NCCL)", "device", 1],
  ].map(([label, kind, rows], at, all) => ({
    label, process: "", kind, device: kind === "device" ? 0 : null, worker: 0, rows,
    row: all.slice(0, at).reduce((sum, [, , count]) => sum + count, 0),
  }));
  const events = [];
  const add = (row, start, length, name, kind) =>
    events.push({ row, start: Math.round(start * span), length: Math.max(1, Math.round(length * span)), name, kind });
  add(0, 0, 0.22, "ProfilerStep#4", "step");
  add(1, 0.02, 0.1, "Optimizer.step#AdamW.step", "annotation");
  add(2, 0.03, 0.05, "aten::_foreach_addcdiv_", "operator");
  add(1, 0.13, 0.08, "Optimizer.zero_grad#AdamW.zero_grad", "annotation");
  add(0, 0.23, 0.77, "ProfilerStep#5", "step");
  for (let index = 0; index < 9; index += 1) {
    add(1, 0.77 + index * 0.025, 0.022, "aten::linear", "operator");
    add(2, 0.775 + index * 0.025, 0.008, "cudaLaunchKernel", "launch");
    add(4, 0.79 + index * 0.023, 0.021, "ampere_bf16_s16816gemm_bf16_128x128", "kernel");
  }
  for (let index = 0; index < 14; index += 1) {
    add(4, index * 0.016, 0.014, "multi_tensor_apply_kernel", "kernel");
  }
  add(3, 0, 0.05, "autograd::engine::evaluate_function: AddmmBackward0", "operator");
  add(5, 0, 0.09, "ncclDevKernel_AllReduce_Sum_f16_RING_LL", "collective");
  for (const { evidence } of report?.findings ?? []) {
    for (const row of evidence.flatMap((item) => (item.kind === "events" ? item.rows : []))) {
      if (row.start_ns >= to || row.start_ns + row.duration_ns <= from) continue;
      const device = /kernel|nccl|Memcpy/i.test(row.name);
      const kind = /nccl/.test(row.name) ? "collective" : device ? "kernel" : "input_wait";
      events.push({ row: device ? 4 : 1, start: row.start_ns - from, length: row.duration_ns, name: row.name, kind });
    }
  }
  events.sort((a, b) => a.row - b.row || a.start - b.start);
  const [kinds, texts] = ["kind", "name"].map((key) => [...new Set(events.map((event) => event[key]))]);
  const column = (value) => events.map(value);
  const none = column(() => -1);
  return {
    worker: 0, from_ns: from, to_ns: to, window_ns: [0, 10 * stepNs], whole_ns: 10 * stepNs, bin_ns: 1, left_out: 0, ranks_left_out: 0,
    tracks, kinds, texts,
    boxes: {
      row: column(({ row }) => row),
      start_ns: column(({ start }) => start),
      duration_ns: column(({ length }) => length),
      busy_ns: column(({ length }) => length),
      count: column(() => 1),
      event: column((_, at) => at),
      kind: column(({ kind }) => kinds.indexOf(kind)),
      name: column(({ name }) => texts.indexOf(name)),
      module: none,
      line: none,
    },
    causes: { bins: 4, total_ns: { input: [span / 4, 0, 0, 0], "compute-16": [0, span / 4, span / 4, span / 4] } },
    claims: (report?.findings ?? []).map((_, finding) => ({ finding, intervals: [[span / 4, (span * 3) / 4]] })),
    steps: [[4, 0, 0.22 * span], [5, 0.23 * span, span]],
    event: null,
  };
}

async function answer(path, query, method) {
  if (path === "captures") return [200, await readJson(`${process.env.CAPTURES ?? "captures"}.json`)];
  if (path === "doctor") return [200, { scan: {}, rejected: [], rejected_count: 0, notes: [] }];
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
  if (rest === "search") return [200, { count: 0, total_ns: 0, events: [] }];
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
