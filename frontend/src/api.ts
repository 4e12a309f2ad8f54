// The plugin's routes. Addresses are relative to this module: they survive any prefix or proxy.
import { answerFromPage, isExported } from "./exported";
import type { Comparison, InputView, KernelsView, MemoryView, NoteInfo, RanksView, Report, StepsView } from "./report";

// In an exported page, which may lie in a frame without an address, nothing is ever fetched.
export const BASE = new URL("..", isExported ? "file:///" : import.meta.url);

export interface Capture {
  id: string;
  run: string;
  session: string;
  framework: string;
  format: string;
  files: number;
  size_bytes: number;
  status: "new" | "queued" | "running" | "done" | "failed";
  is_synthetic: boolean | null;
  headline: string | null;
  /** How the Profile tab names the capture; absent where that tab cannot show it. */
  profile_run?: string | null;
  profile_host?: string | null;
}

export interface Scan {
  root: string;
  scanned_files: number;
  is_complete: boolean;
  /** What was not looked at, and why. */
  gaps: string[];
  is_scanning: boolean;
}

export interface CaptureList {
  captures: Capture[];
  rejected: { path: string; reason: string }[];
  scan: Scan;
}

export interface Progress {
  status: "queued" | "running";
  stage: string;
  progress: number | null;
  queue_position: number | null;
}

export interface EventWindow {
  worker: number;
  from_ns: number;
  to_ns: number;
  tracks: { label: string; kind: "host" | "device"; device: number | null }[];
  events: { track: number; start_ns: number; duration_ns: number; name: string; kind: string }[];
  /** From when to when the finding claims the time. */
  claims: [startNs: number, endNs: number][];
  truncated: number;
}

/** One line of the catalog of rules. */
export interface RuleInfo {
  id: string;
  title: string;
  category: string;
  refines: string | null;
  is_preview: boolean;
  needs: string[];
  limits: { name: string; value: number; unit: string; why: string }[];
}

export interface Doctor extends Omit<CaptureList, "captures"> {
  notes: NoteInfo[];
}

export interface RulePage {
  id: string;
  title: string;
  page: string;
}

/** An answer that is none: what went wrong, where, and what to do next. */
export class ApiError extends Error {
  readonly where: string;
  readonly hint: string;
  constructor(message: string, where = "", hint = "") {
    super(message);
    this.where = where;
    this.hint = hint;
  }
}

export const captureUrl = (id: string, rest: string): string =>
  new URL(`api/v1/captures/${encodeURIComponent(id)}/${rest}`, BASE).href;

async function request(url: string, init: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    if (isExported) response = answerFromPage(url);
    else response = await fetch(url, { credentials: "same-origin", ...init });
  } catch (cause) {
    if (init.signal?.aborted) throw cause;
    throw new ApiError(
      "TensorBoard does not answer",
      "",
      "Check that it still runs and that the connection or tunnel to it stands, then try again.",
    );
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const error = body?.error;
  throw new ApiError(
    error?.message ?? `TensorBoard answered with status ${response.status}`,
    error?.where ?? "",
    error?.hint ?? "Reload the page; if that does not help, look at TensorBoard's log.",
  );
}

async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const url = new URL(`api/v1/${path}`, BASE).href;
  return (await request(url, signal ? { signal } : {})).json() as Promise<T>;
}

export const fetchCaptures = (signal?: AbortSignal): Promise<CaptureList> =>
  get<CaptureList>("captures", signal);

export const fetchRule = (id: string): Promise<RulePage> =>
  get<RulePage>(`rules/${encodeURIComponent(id)}`);

export const fetchRules = async (signal?: AbortSignal): Promise<RuleInfo[]> =>
  (await get<{ rules: RuleInfo[] }>("rules", signal)).rules;

export const fetchDoctor = (signal?: AbortSignal): Promise<Doctor> => get<Doctor>("doctor", signal);

/** What each view is; null where the profile has nothing to show in it. */
interface Views {
  steps: StepsView;
  ranks: RanksView | null;
  input: InputView;
  kernels: KernelsView | null;
  memory: MemoryView | null;
}

export const fetchView = <Name extends keyof Views>(
  id: string,
  name: Name,
  signal?: AbortSignal,
): Promise<Views[Name]> =>
  get<Views[Name]>(`captures/${encodeURIComponent(id)}/views/${name}`, signal);

/** Captures against a base, or how far those are that must be analyzed first. */
export async function fetchComparison(
  base: string,
  targets: string[],
  signal?: AbortSignal,
  isRetry = false,
): Promise<{ comparison: Comparison } | { waiting: (Progress & { id: string })[] }> {
  const query = new URLSearchParams([["base", base], ...targets.map((id) => ["target", id])]);
  if (isRetry) query.set("retry", "1");
  const url = new URL(`api/v1/compare?${query}`, BASE).href;
  const response = await request(url, signal ? { signal } : {});
  const body = await response.json();
  return response.status === 202 ? { waiting: body.captures } : { comparison: body };
}

export function fetchWindow(
  id: string,
  range: { worker: number; finding: number; fromNs: number; toNs: number; maxEvents: number },
  signal?: AbortSignal,
): Promise<EventWindow> {
  const query = new URLSearchParams({
    worker: String(range.worker),
    finding: String(range.finding),
    from_ns: String(Math.round(range.fromNs)),
    to_ns: String(Math.round(range.toNs)),
    max_events: String(range.maxEvents),
  });
  return get<EventWindow>(`captures/${encodeURIComponent(id)}/window?${query}`, signal);
}

/** The events around a finding's evidence as a file; without times the server chooses them. */
export function excerptUrl(
  id: string,
  finding: number,
  range?: { worker: number; fromNs: number; toNs: number },
): string {
  const query = new URLSearchParams({ finding: String(finding) });
  if (range) {
    query.set("worker", String(range.worker));
    query.set("from_ns", String(Math.round(range.fromNs)));
    query.set("to_ns", String(Math.round(range.toNs)));
  }
  return captureUrl(id, `excerpt?${query}`);
}

/** The report, or how far its analysis is; a retry starts one that failed or was canceled. */
export async function fetchReport(
  id: string,
  signal?: AbortSignal,
  isRetry = false,
): Promise<{ report: Report } | { progress: Progress }> {
  const rest = isRetry ? "report?retry=1" : "report";
  const response = await request(captureUrl(id, rest), signal ? { signal } : {});
  const body = await response.json();
  return response.status === 202 ? { progress: body } : { report: body };
}

export async function cancelAnalysis(id: string): Promise<void> {
  // The header tells the tab from pages of other sites, where the browser does not.
  await request(captureUrl(id, "cancel"), { method: "POST", headers: { "X-Perf-Advisor": "tab" } });
}
