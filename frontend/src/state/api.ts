// Requests to the plugin's routes. URLs are relative to this module, so any prefix or proxy works.
import type {
  CombinedSaving, Comparison, HistoryView, RemarkInfo, Report, TrainingView, Views,
} from "../report";
import {
  ApiError, type Canceled, type Capture, type CaptureList, type CriticalPath, type Doctor, type EventInfo, type EventWindow, type FoundEvents, type Mark,
  type Progress, type RangeSums, type RejectedFiles, type RuleInfo, type RulePage, type SuggestedPatch,
} from "./answers";
import { parseAnswer } from "./answer-text";
import { clientName } from "./client";
import { answerFromPage, isExported } from "./exported";
import { attempts } from "./polling";
import { type RunOptions, runOptions } from "./run-options";

// An exported page fetches nothing, and may be in a frame without a URL of its own.
export const BASE = new URL("..", isExported ? "file:///" : import.meta.url);

export const captureUrl = (id: string, rest: string): string =>
  new URL(`api/v1/captures/${encodeURIComponent(id)}/${rest}`, BASE).href;

async function request(url: string, init: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    if (isExported) response = answerFromPage(url);
    // The header proves that the request comes from the tab, also in browsers that send no Origin.
    else response = await fetch(url, { credentials: "same-origin", ...init, headers: { "X-Perf-Advisor": clientName(), ...init.headers } });
  } catch (cause) {
    if (init.signal?.aborted) throw cause;
    throw new ApiError(
      "TensorBoard is not responding",
      "",
      "Check that it is still running and that your connection or tunnel to it works, then try again.",
    );
  }
  if (response.ok) return response;
  const error = await errorOf(response);
  throw new ApiError(
    error?.message ?? `TensorBoard returned status ${response.status}`,
    error?.where ?? "",
    error?.hint ?? "Reload the page; if that does not help, check TensorBoard's log.",
  );
}

async function errorOf(response: Response): Promise<{ message?: string; where?: string; hint?: string } | undefined> {
  try {
    return (parseAnswer(await response.text()) as { error?: object }).error;
  } catch {
    return undefined; // a proxy's page
  }
}

async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const url = new URL(`api/v1/${path}`, BASE).href;
  const response = await request(url, signal ? { signal } : {});
  return parseAnswer(await response.text()) as T;
}

/** What the server makes of results, once it is made: one after the other, so it may have to wait its turn. */
export async function fetchMade(url: string, signal: AbortSignal = new AbortController().signal): Promise<Response> {
  for await (const _ of attempts(signal)) {
    const response = await request(url, { signal });
    if (response.status !== 202) return response;
  }
  throw signal.reason;
}

async function getMade<T>(path: string, signal: AbortSignal): Promise<T> {
  const response = await fetchMade(new URL(`api/v1/${path}`, BASE).href, signal);
  return parseAnswer(await response.text()) as T;
}

// Proves that a link comes from the tab.
let token = "";

export async function fetchCaptures(signal?: AbortSignal): Promise<CaptureList> {
  const list = await get<CaptureList>("captures", signal);
  token = list.token ?? "";
  return list;
}

export const fetchRule = (id: string): Promise<RulePage> =>
  get<RulePage>(`rules/${encodeURIComponent(id)}`);

export const fetchRules = async (signal?: AbortSignal): Promise<RuleInfo[]> =>
  (await get<{ rules: RuleInfo[] }>("rules", signal)).rules;

/** Files that were not read, from a place on, of those that contain all words of a text. */
export const fetchRejected = (text: string, from: number, signal?: AbortSignal): Promise<RejectedFiles> =>
  get<RejectedFiles>(`rejected?${new URLSearchParams({ text, from: String(from) })}`, signal);

export const fetchDoctor = (signal?: AbortSignal): Promise<Doctor> => get<Doctor>("doctor", signal);

export const fetchView = <Name extends keyof Views>(
  id: string,
  name: Name,
  signal?: AbortSignal,
): Promise<Views[Name]> =>
  get<Views[Name]>(`captures/${encodeURIComponent(id)}/views/${name}`, signal);

const optionValues = ({ pricePerDeviceHour, totalSteps }: RunOptions): Record<string, string> => ({
  ...(pricePerDeviceHour === null ? {} : { price_per_device_hour: String(pricePerDeviceHour) }),
  ...(totalSteps === null ? {} : { total_steps: String(totalSteps) }),
});

/** The run that a capture belongs to, null if its scalars say nothing; or the progress of reading them. */
export async function fetchTraining(
  id: string,
  options: RunOptions,
  signal: AbortSignal,
  isRetry: boolean,
): Promise<{ view: TrainingView | null } | { progress: Progress }> {
  const query = new URLSearchParams(optionValues(options));
  if (isRetry) query.set("retry", "1");
  const response = await request(captureUrl(id, `training?${query}`), { signal });
  const body = parseAnswer(await response.text());
  return response.status === 202 ? { progress: body as Progress } : { view: body as TrainingView | null };
}

/** What some findings save together, by their places in the report. */
export const fetchCombination = (id: string, places: number[], signal: AbortSignal): Promise<CombinedSaving> =>
  getMade<CombinedSaving>(
    `captures/${encodeURIComponent(id)}/combination?${new URLSearchParams(places.map((place) => ["finding", String(place)]))}`,
    signal,
  );

/** Patches for the findings with a mechanical fix, if TensorBoard knows the program's code. */
export const fetchPatches = (id: string, signal: AbortSignal): Promise<SuggestedPatch[]> =>
  getMade<SuggestedPatch[]>(`captures/${encodeURIComponent(id)}/patches`, signal);

/** The recordings of the run that a capture belongs to, as far as they are analyzed. */
export const fetchHistory = (id: string, signal: AbortSignal): Promise<HistoryView> =>
  getMade<HistoryView>(`captures/${encodeURIComponent(id)}/history`, signal);

/** Which captures got slower or faster: than the recording before, or than a baseline. */
export const fetchMarks = async (baseline: string | null, signal: AbortSignal): Promise<Record<string, Mark>> => {
  const query = baseline === null ? "" : `?${new URLSearchParams({ baseline })}`;
  return (await get<{ marks: Record<string, Mark> }>(`marks${query}`, signal)).marks;
};

/** Compares captures with a base; answers with the progress of those, if any, that are still being analyzed. */
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
  const body = parseAnswer(await response.text());
  if (response.status === 202) return { waiting: (body as { captures?: (Progress & { id: string })[] }).captures ?? [] };
  return { comparison: body as Comparison };
}

/** What a timeline draws; without a range, of a typical step. */
export function fetchWindow(
  id: string,
  wanted: { worker: number; range: { fromNs: number; toNs: number } | null; bins: number; finding?: number | undefined },
  signal?: AbortSignal,
): Promise<EventWindow> {
  const query = new URLSearchParams({ worker: String(wanted.worker), bins: String(wanted.bins) });
  if (wanted.range) {
    query.set("from_ns", String(Math.round(wanted.range.fromNs)));
    query.set("to_ns", String(Math.round(wanted.range.toNs)));
  }
  if (wanted.finding !== undefined) query.set("finding", String(wanted.finding));
  return get<EventWindow>(`captures/${encodeURIComponent(id)}/window?${query}`, signal);
}

/** An event with its arguments and links; null if it is not there. */
export const fetchEvent = (id: string, event: number, worker: number, signal: AbortSignal): Promise<EventInfo | null> =>
  get<EventInfo | null>(`captures/${encodeURIComponent(id)}/event?${new URLSearchParams({ event: String(event), worker: String(worker) })}`, signal);

export const searchEvents = (id: string, text: string, signal: AbortSignal): Promise<FoundEvents> =>
  get<FoundEvents>(`captures/${encodeURIComponent(id)}/search?${new URLSearchParams({ text })}`, signal);

/** The sums of a range, or of a part of a step; of the typical one if its number is null. */
export function fetchSums(
  id: string,
  of: { worker: number; fromNs: number; toNs: number } | { step: number | null; fromPart: number; toPart: number },
  signal: AbortSignal,
): Promise<RangeSums> {
  const values =
    "fromNs" in of
      ? { worker: String(of.worker), from_ns: String(Math.round(of.fromNs)), to_ns: String(Math.round(of.toNs)) }
      : { from_part: of.fromPart.toFixed(9), to_part: of.toPart.toFixed(9), ...(of.step === null ? {} : { step: String(of.step) }) };
  return get<RangeSums>(`captures/${encodeURIComponent(id)}/sums?${new URLSearchParams(values)}`, signal);
}

/** On the clock of a worker. */
export const fetchPath = (id: string, step: number, worker: number, signal: AbortSignal): Promise<CriticalPath> =>
  get<CriticalPath>(`captures/${encodeURIComponent(id)}/path?${new URLSearchParams({ step: String(step), worker: String(worker) })}`, signal);

/**
 * Downloads the events around a finding's evidence, or any events. Without a range the server
 * chooses one.
 */
export function excerptUrl(
  id: string,
  finding: number | undefined,
  range?: { worker: number; fromNs: number; toNs: number },
): string {
  const query = new URLSearchParams({ token });
  if (finding !== undefined) query.set("finding", String(finding));
  if (range) {
    query.set("worker", String(range.worker));
    query.set("from_ns", String(Math.round(range.fromNs)));
    query.set("to_ns", String(Math.round(range.toNs)));
  }
  return captureUrl(id, `excerpt?${query}`);
}

/** Downloads the report in a format. */
export const exportUrl = (id: string, format: string): string =>
  captureUrl(id, `export?${new URLSearchParams({ format, token, ...optionValues(runOptions.value) })}`);

/** The report, or the progress of its analysis; a retry restarts one that failed or was canceled. */
export async function fetchReport(
  id: string,
  signal?: AbortSignal,
  isRetry = false,
): Promise<{ report: Report } | { progress: Progress }> {
  const rest = isRetry ? "report?retry=1" : "report";
  const response = await request(captureUrl(id, rest), signal ? { signal } : {});
  const body = parseAnswer(await response.text());
  return response.status === 202 ? { progress: body as Progress } : { report: body as Report };
}

/** The capture as the list has it; starts its analysis, which the status then tells. */
export const fetchRow = (id: string, signal?: AbortSignal, isRetry = false): Promise<Capture> =>
  get<Capture>(`captures/${encodeURIComponent(id)}/row${isRetry ? "?retry=1" : ""}`, signal);

/** Asks running programs to record their next steps; answers how many were asked. */
export async function recordNow(): Promise<number> {
  const response = await request(new URL("api/v1/record", BASE).href, { method: "POST" });
  return (parseAnswer(await response.text()) as { programs: number }).programs;
}

/** Waits for an analysis no more. */
export async function cancelAnalysis(id: string): Promise<Canceled> {
  const response = await request(captureUrl(id, "cancel"), { method: "POST" });
  return parseAnswer(await response.text()) as Canceled;
}

/** Keeps what the user says about a finding; an empty note takes back the last one. */
export async function sendRemark(id: string, finding: string, remark: RemarkInfo): Promise<RemarkInfo> {
  const body = JSON.stringify({ finding, ...remark });
  const response = await request(captureUrl(id, "note"), {
    method: "POST",
    body,
    headers: { "Content-Type": "application/json" },
  });
  return parseAnswer(await response.text()) as RemarkInfo;
}

/** Downloads all notes as part of a settings file. */
export const notesUrl = (): string => new URL("api/v1/notes", BASE).href;
