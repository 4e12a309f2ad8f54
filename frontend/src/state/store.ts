// The state of the tab: captures, the report on screen, and what is open in it.
import { computed, signal } from "@preact/signals";
import type { Report } from "../report";
import { ApiError, type Capture, type CaptureList, toApiError } from "./answers";
import { cancelAnalysis, fetchCaptures, fetchReport } from "./api";
import { readLink, writeLink } from "./host";
import { type Load, attempts } from "./polling";

export const captures = signal<Load<CaptureList>>({ state: "loading" });
export const selectedId = signal<string | null>(null);
export const report = signal<Load<Report>>({ state: "loading" });
export const openFindings = signal<ReadonlySet<string>>(new Set());

/** The pages of the tab, by their names in the URL. */
export const PAGES = ["report", "steps", "input", "kernels", "operators", "memory", "ranks", "compare", "rules", "files"] as const;
export type PageName = (typeof PAGES)[number];
export const page = signal<PageName>("report");

/** The ids of the compared captures. Without a base, the selected capture is the base. */
export const compared = signal<{ base: string | null; targets: string[] }>({ base: null, targets: [] });

export const selectedCapture = computed<Capture | undefined>(() =>
  captures.value.state === "ready"
    ? captures.value.value.captures.find(({ id }) => id === selectedId.value)
    : undefined,
);

/** Whether the link names a capture that is not in the logdir. */
export const isLinkDead = signal(false);

let listing: AbortController | null = null;
let loading: AbortController | null = null;
let shownRun: string | undefined;

/** Lists the captures, repeatedly while the logdir is being scanned. */
export async function loadCaptures(): Promise<void> {
  listing?.abort();
  const { signal } = (listing = new AbortController());
  for await (const _ of attempts(signal)) {
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
  }
}

/**
 * Keeps the selected capture; if it is gone (its files moved), selects another of the same run. A link
 * to a capture that is not there shows no other one in its place.
 */
function chooseCapture({ captures: available, scan }: CaptureList): void {
  const ids = new Set(available.map(({ id }) => id));
  if (selectedId.value !== null && (ids.has(selectedId.value) || scan.is_scanning)) return;
  readPage();
  const linked = readLink().capture;
  const isFound = linked !== undefined && ids.has(linked);
  const isMissing = linked !== undefined && !isFound && shownRun === undefined;
  isLinkDead.value = isMissing && !scan.is_scanning;
  const next = available.find(({ run }) => run === shownRun) ?? available[0];
  const id = isFound ? linked : isMissing ? undefined : next?.id;
  if (id === undefined) {
    selectedId.value = null;
    return;
  }
  const { finding } = readLink();
  void showCapture(id, finding ? [finding] : []);
}

/**
 * Shows a capture's report, waiting for its analysis if needed. An analysis that failed or was
 * canceled restarts only when the user asks for it.
 */
export async function showCapture(id: string, open: string[] = [], isRetry = false): Promise<void> {
  loading?.abort();
  const { signal } = (loading = new AbortController());
  selectedId.value = id;
  isLinkDead.value = false;
  report.value = { state: "loading" };
  openFindings.value = new Set(open);
  for await (const _ of attempts(signal)) {
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
  }
}

/** Adds what the analysis found out to the list, which was fetched before it. */
function noteAnalyzed(id: string, { framework, is_synthetic, headline }: Report): void {
  if (captures.value.state !== "ready") return;
  const known = { status: "done" as const, framework, is_synthetic, headline };
  const list = captures.value.value;
  const updated = list.captures.map((capture) =>
    capture.id === id ? { ...capture, ...known } : capture,
  );
  captures.value = { state: "ready", value: { ...list, captures: updated } };
}

/** Selects a capture on behalf of the user: shows it and writes it to the URL. */
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
      error: new ApiError("The analysis was canceled", "", "Press “Try again” to restart it."),
    };
  } catch (error) {
    report.value = { state: "failed", error: toApiError(error) };
  }
}

export function showPage(name: PageName): void {
  page.value = name;
  if (selectedId.value !== null) writeLink("capture", selectedId.value);
  writeLink("view", name === "report" ? "" : name);
}

/** Opens a finding on the report page. */
export function openFinding(id: string): void {
  openFindings.value = new Set([...openFindings.value, id]);
  if (selectedId.value !== null) writeLink("capture", selectedId.value);
  writeLink("finding", id);
}

/** Opens a finding from another page. */
export function showFinding(id: string): void {
  openFinding(id);
  showPage("report");
}

export function compare(base: string | null, targets: string[]): void {
  compared.value = { base, targets };
  writeLink("base", base ?? "");
  writeLink("target", targets.join(","));
}

function readPage(): void {
  const { view: name, base, target } = readLink();
  page.value = PAGES.find((candidate) => candidate === name) ?? "report";
  compared.value = { base: base ?? null, targets: target ? target.split(",") : [] };
}

/** Follows a URL that changed while the tab is open. */
export function openLink(): void {
  readPage();
  const { capture, finding } = readLink();
  const available = captures.value.state === "ready" ? captures.value.value.captures : [];
  // Before another one was chosen, the first capture was on screen without being in the URL.
  const id = capture || available[0]?.id;
  if (id && id !== selectedId.value && available.some((candidate) => candidate.id === id)) {
    void showCapture(id, finding ? [finding] : []);
  } else if (finding && !openFindings.value.has(finding)) {
    openFindings.value = new Set([...openFindings.value, finding]);
  }
}

/** Handles TensorBoard's reload button: scans the logdir again, and reloads a changed report. */
export async function reload(): Promise<void> {
  const id = selectedId.value;
  await loadCaptures();
  const status = selectedCapture.value?.status;
  const isStale = report.value.state !== "ready" || status !== "done";
  if (id !== null && id === selectedId.value && isStale && report.value.state !== "running") {
    await showCapture(id, [...openFindings.value]);
  }
}
