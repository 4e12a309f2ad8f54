// Links to TensorBoard's Profile tab, for captures that it can show.
import type { Capture } from "./answers";

/** Query keys of the Profile tab, replaced in links to it; other keys stay (Colab needs them). */
const PROFILE_KEYS = [
  "run", "tag", "tool", "host", "hosts", "firstLoad", "module_name", "node_name", "session_path",
  "run_path", "base_session_id",
];

const TOOLS: Record<string, [tool: string, label: string]> = {
  input: ["input_pipeline_analyzer", "input pipeline"],
  memory: ["memory_profile", "memory profile"],
  placement: ["framework_op_stats", "framework operators"],
  precision: ["kernel_stats", "kernels"],
  compute: ["kernel_stats", "kernels"],
  xla: ["hlo_stats", "HLO statistics"],
};
const OVERVIEW: [string, string] = ["overview_page", "overview"];

export interface ProfileTarget {
  run: string;
  host: string;
}

export function profileTarget(capture: Capture | undefined): ProfileTarget | null {
  if (!capture?.profile_run || !capture.profile_host) return null;
  return { run: capture.profile_run, host: capture.profile_host };
}

export const profileTool = (category: string): [tool: string, label: string] =>
  TOOLS[category] ?? OVERVIEW;

/** The URL of the Profile tab with a tool open; `base` is the plugin's URL. */
export function profileLink(
  base: URL,
  search: string,
  { run, host }: ProfileTarget,
  tool: string,
): string {
  const url = new URL("../../../", base);
  const query = new URLSearchParams(search);
  for (const key of PROFILE_KEYS) query.delete(key);
  query.set("run", run);
  query.set("tool", tool);
  query.set("host", host);
  url.search = query.toString();
  url.hash = "profile";
  return url.href;
}

/** The URL of the trace viewer at a time range, which the Profile tab itself cannot open. */
export function traceViewerLink(
  base: URL,
  { run, host }: ProfileTarget,
  fromNs: number,
  toNs: number,
): string {
  const root = new URL("../../../", base);
  const data = new URLSearchParams({ run, tag: "trace_viewer@", host });
  const url = new URL("data/plugin/profile/trace_viewer_index.html", root);
  url.search = new URLSearchParams({
    session_id: run,
    is_streaming: "true",
    is_oss: "true",
    // The viewer needs an absolute path, prefix included.
    trace_data_url: `${root.pathname}data/plugin/profile/data?${data}`,
    view_start: String(fromNs / 1e6),
    view_end: String(toNs / 1e6),
  }).toString();
  return url.href;
}
