// What the tab knows, and how it comes to know it.
import { computed, signal } from "@preact/signals";
import {
  ApiError,
  type Capture,
  type CaptureList,
  type Progress,
  cancelAnalysis,
  fetchCaptures,
  fetchReport,
} from "./api";
import { readLink, writeLink } from "./host";
import type { Report } from "./report";

export type Load<T> =
  | { state: "loading" }
  | { state: "running"; progress: Progress }
  | { state: "failed"; error: ApiError }
  | { state: "ready"; value: T };

export const captures = signal<Load<CaptureList>>({ state: "loading" });
export const selectedId = signal<string | null>(null);
export const report = signal<Load<Report>>({ state: "loading" });
export const openFindings = signal<ReadonlySet<string>>(new Set());

/** The views beside the report, by their names in the address. */
export const VIEWS = ["report", "steps", "input", "kernels", "memory", "ranks", "compare", "rules", "files"] as const;
export type ViewName = (typeof VIEWS)[number];
export const view = signal<ViewName>("report");

/** What is compared: captures by id. No base means the one that is shown. */
export const compared = signal<{ base: string | null; targets: string[] }>({ base: null, targets: [] });

export const selectedCapture = computed<Capture | undefined>(() =>
  captures.value.state === "ready"
    ? captures.value.value.captures.find(({ id }) => id === selectedId.value)
    : undefined,
);

export const FIRST_WAIT_MS = 400;
export const LONGEST_WAIT_MS = 5_000;
export const BACK_OFF = 1.5;

let listing: AbortController | null = null;
let loading: AbortController | null = null;
let shownRun: string | undefined;

export const toApiError = (error: unknown): ApiError =>
  error instanceof ApiError
    ? error
    : new ApiError("The answer cannot be shown", "", `Reload the page. (${String(error)})`);

export function sleep(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

/** Lists the captures, again and again while the logdir is still being scanned. */
export async function loadCaptures(): Promise<void> {
  listing?.abort();
  const { signal } = (listing = new AbortController());
  let wait = FIRST_WAIT_MS;
  while (!signal.aborted) {
    try {
      const list = await fetchCaptures(signal);
      if (signal.aborted) return;
      shownRun = selectedCapture.value?.run ?? shownRun;
      captures.value = { state: "ready", value: list };
      chooseCapture(list);
      if (!list.scan.is_scanning) return;
    } catch (error) {
      if (signal.aborted) return;
      captures.value = { state: "failed", error: toApiError(error) };
      return;
    }
    await sleep(wait, signal);
    wait = Math.min(wait * BACK_OFF, LONGEST_WAIT_MS);
  }
}

/** Keeps what is shown; when that is gone, as after its files were moved, its run has another. */
function chooseCapture({ captures: found, scan }: CaptureList): void {
  const ids = new Set(found.map(({ id }) => id));
  if (selectedId.value !== null && (ids.has(selectedId.value) || scan.is_scanning)) return;
  readView();
  const linked = readLink().capture;
  const next = found.find(({ run }) => run === shownRun) ?? found[0];
  const id = linked !== undefined && ids.has(linked) ? linked : next?.id;
  if (id === undefined) {
    selectedId.value = null;
    return;
  }
  const { finding } = readLink();
  void showCapture(id, finding ? [finding] : []);
}

/**
 * Shows a capture's report, waiting for its analysis where there is none yet. An analysis that
 * failed or was canceled starts again only when a person asks for it.
 */
export async function showCapture(id: string, open: string[] = [], isRetry = false): Promise<void> {
  loading?.abort();
  const { signal } = (loading = new AbortController());
  selectedId.value = id;
  report.value = { state: "loading" };
  openFindings.value = new Set(open);
  let wait = FIRST_WAIT_MS;
  while (!signal.aborted) {
    try {
      const answer = await fetchReport(id, signal, isRetry);
      isRetry = false;
      if (signal.aborted) return;
      if ("report" in answer) {
        report.value = { state: "ready", value: answer.report };
        noteAnalyzed(id, answer.report);
        return;
      }
      report.value = { state: "running", progress: answer.progress };
    } catch (error) {
      if (signal.aborted) return;
      report.value = { state: "failed", error: toApiError(error) };
      return;
    }
    await sleep(wait, signal);
    wait = Math.min(wait * BACK_OFF, LONGEST_WAIT_MS);
  }
}

/** The list was fetched before the file was read: what is known since is put into it. */
function noteAnalyzed(id: string, { framework, is_synthetic, headline }: Report): void {
  if (captures.value.state !== "ready") return;
  const known = { status: "done" as const, framework, is_synthetic, headline };
  const list = captures.value.value;
  const updated = list.captures.map((capture) =>
    capture.id === id ? { ...capture, ...known } : capture,
  );
  captures.value = { state: "ready", value: { ...list, captures: updated } };
}

/** A choice of the user's: shown and put into the address. */
export function selectCapture(id: string): void {
  writeLink("finding", "");
  writeLink("capture", id);
  void showCapture(id);
}

export function toggleFinding(ruleId: string): void {
  const open = new Set(openFindings.value);
  if (!open.delete(ruleId)) open.add(ruleId);
  openFindings.value = open;
  if (selectedId.value !== null) writeLink("capture", selectedId.value);
  writeLink("finding", open.has(ruleId) ? ruleId : "");
}

export async function cancelSelected(): Promise<void> {
  const id = selectedId.value;
  if (id === null) return;
  try {
    await cancelAnalysis(id);
    loading?.abort();
    report.value = {
      state: "failed",
      error: new ApiError("The analysis was canceled", "", "Start it again when you like."),
    };
  } catch (error) {
    report.value = { state: "failed", error: toApiError(error) };
  }
}

/** Another view of the same capture. */
export function showView(name: ViewName): void {
  view.value = name;
  if (selectedId.value !== null) writeLink("capture", selectedId.value);
  writeLink("view", name === "report" ? "" : name);
}

/** A finding of the report that is shown. */
export function openFinding(id: string): void {
  openFindings.value = new Set([...openFindings.value, id]);
  if (selectedId.value !== null) writeLink("capture", selectedId.value);
  writeLink("finding", id);
}

/** A finding of the report, opened from another view. */
export function showFinding(id: string): void {
  openFinding(id);
  showView("report");
}

export function compare(base: string | null, targets: string[]): void {
  compared.value = { base, targets };
  writeLink("base", base ?? "");
  writeLink("target", targets.join(","));
}

function readView(): void {
  const { view: name, base, target } = readLink();
  view.value = VIEWS.find((one) => one === name) ?? "report";
  compared.value = { base: base ?? null, targets: target ? target.split(",") : [] };
}

/** Follows an address that changed while the tab is open. */
export function openLink(): void {
  readView();
  const { capture, finding } = readLink();
  const known = captures.value.state === "ready" ? captures.value.value.captures : [];
  if (capture && capture !== selectedId.value && known.some(({ id }) => id === capture)) {
    void showCapture(capture, finding ? [finding] : []);
  } else if (finding && !openFindings.value.has(finding)) {
    openFindings.value = new Set([...openFindings.value, finding]);
  }
}

/** TensorBoard's reload button: a new look at the logdir, and at the report if it changed. */
export async function reload(): Promise<void> {
  const id = selectedId.value;
  await loadCaptures();
  const status = selectedCapture.value?.status;
  const isStale = report.value.state !== "ready" || status !== "done";
  if (id !== null && id === selectedId.value && isStale && report.value.state !== "running") {
    await showCapture(id, [...openFindings.value]);
  }
}
