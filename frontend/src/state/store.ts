// The state of the tab: captures, the report on screen, and what is open in it.
import { computed, signal } from "@preact/signals";
import { findingIds } from "../finding-ids";
import type { Report } from "../report";
import { ApiError, type Capture, type CaptureList, toApiError } from "./answers";
import { cancelAnalysis, fetchCaptures, fetchReport, fetchRow } from "./api";
import { readLink, writeLink } from "./host";
import { type LinkValues, forgottenBelow, link, writePlace, writeState } from "./link";
import { movedTo } from "./moved";
import { type Load, attempts } from "./polling";

export const captures = signal<Load<CaptureList>>({ state: "loading" });
export const selectedId = signal<string | null>(null);
export const report = signal<Load<Report>>({ state: "loading" });

/** In the address, that the finding which is open at first was closed. */
const NONE = "none";
/** The id of the finding that is open: the last that the address names, else the first of the report. */
export const chosenFinding = computed<string | null>(() => {
  const named = link.value.finding?.split(",").at(-1);
  if (named !== undefined) return named === NONE ? null : named;
  // A cause that is chosen shows its own time, until one of its findings is.
  if (link.value.cause || report.value.state !== "ready") return null;
  const { first, findings } = report.value.value;
  return first ? (findingIds(findings)[first.index] ?? null) : null;
});

/** The pages about the whole log folder. All others are about a capture: see pages/registry.tsx. */
const FOLDER_PAGES: readonly string[] = ["runs", "compare", "about"];
/** The name of the page in the URL. */
export const page = signal("report");

export const isAboutCapture = (name: string): boolean => !FOLDER_PAGES.includes(name);

/** The rule whose page is open. */
export const openRule = computed(() => link.value.rule ?? null);

const comparedIds = computed(() => [link.value.base ?? "", link.value.target ?? ""].join(" "));
/** The ids of the compared captures. Without a base, the selected capture is the base. */
export const compared = computed<{ base: string | null; targets: string[] }>(() => {
  const [base = "", targets = ""] = comparedIds.value.split(" ");
  return { base: base || null, targets: targets ? targets.split(",") : [] };
});

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
let shownVersion: string | undefined;

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
      keepSelection(list);
      openLink();
      if (!list.scan.is_scanning) return;
    } catch (error) {
      if (signal.aborted) return;
      captures.value = { state: "failed", error: toApiError(error) };
      return;
    }
  }
}

/** Stays at the selected capture; if it is gone (its files moved), selects another of the same run. */
function keepSelection({ captures: available, scan }: CaptureList): void {
  if (selectedId.value === null || scan.is_scanning) return;
  const id = selectedId.value;
  const kept = available.find((capture) => capture.id === id) ?? available.find(({ run }) => run === shownRun);
  // A link to the only capture need not name it, until there is a second one.
  if (kept && (kept.id !== id || available.length > 1)) writeLink({ capture: kept.id }, false);
}

/** Follows the URL, whatever changed in it. */
export function openLink(): void {
  const old = movedTo(readLink());
  if (old !== null) writeLink(old, false);
  const values: LinkValues = (link.value = readLink());
  const named = values.view || "report";
  const list = captures.value.state === "ready" ? captures.value.value : null;
  const isScanning = list?.scan.is_scanning ?? true;
  const [only, ...others] = list?.captures ?? [];
  const id = values.capture ?? (!isScanning && others.length === 0 ? only?.id : undefined);
  page.value = id === undefined && isAboutCapture(named) ? "runs" : named;
  if (list === null) return;
  const isFound = list.captures.some((capture) => capture.id === id);
  // A link to a capture that is not there shows no other one in its place.
  isLinkDead.value = id !== undefined && !isFound && !isScanning;
  if (id !== undefined && isFound) {
    if (id !== selectedId.value) void showCapture(id);
  } else if (!isScanning || id === undefined) {
    loading?.abort();
    selectedId.value = null;
  }
}

/** Goes to another place in the tab on behalf of the user. */
export function go(values: LinkValues): void {
  const [from, rule] = [page.value, openRule.value];
  writePlace(values);
  openLink();
  if (page.value !== from || openRule.value !== rule) scrollTo(0, 0);
}

/**
 * Shows a capture's report, waiting for its analysis if needed. An analysis that failed or was
 * canceled restarts only when the user asks for it.
 */
export async function showCapture(id: string, isRetry = false): Promise<void> {
  loading?.abort();
  const { signal } = (loading = new AbortController());
  selectedId.value = id;
  shownVersion = selectedCapture.value?.version;
  report.value = { state: "loading" };
  for await (const _ of attempts(signal)) {
    try {
      const answer = await fetchReport(id, signal, isRetry);
      isRetry = false;
      if (signal.aborted) return;
      if ("report" in answer) {
        report.value = { state: "ready", value: answer.report };
        await noteAnalyzed(id, signal);
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

/** Shows a note that was just written. */
export async function showRemark(id: string): Promise<void> {
  const answer = await fetchReport(id);
  if ("report" in answer && selectedId.value === id) report.value = { state: "ready", value: answer.report };
  // What is set aside is not the change to begin with in the table of runs.
  showRow(await fetchRow(id));
}

/** Adds what the analysis found out to the list, which was fetched before it. */
async function noteAnalyzed(id: string, signal: AbortSignal): Promise<void> {
  if (selectedCapture.value?.status === "done") return;
  try {
    showRow(await fetchRow(id, signal));
  } catch {
    // The list keeps what it knew.
  }
}

/** Replaces a capture in the list by a newer state of it. */
export function showRow(row: Capture): void {
  if (captures.value.state !== "ready") return;
  const list = captures.value.value;
  const updated = list.captures.map((capture) => (capture.id === row.id ? row : capture));
  captures.value = { state: "ready", value: { ...list, captures: updated } };
}

/** The link to a finding of the selected capture. */
const findingLink = (id: string): LinkValues => ({ capture: selectedId.value ?? "", finding: id });

/** Opens a finding in place of the one that is open, or closes it. */
export function toggleFinding(id: string): void {
  const open = chosenFinding.value;
  writeState({ ...(open === null ? {} : forgottenBelow(open)), ...findingLink(open === id ? NONE : id) });
}

export async function cancelSelected(): Promise<void> {
  const id = selectedId.value;
  if (id === null) return;
  loading?.abort();
  let error: ApiError;
  try {
    const { others_waiting: others } = await cancelAnalysis(id);
    error = others
      ? new ApiError("The analysis goes on for others", "", "Press “Try again” to wait for it, too.")
      : new ApiError("The analysis was canceled", "", "Press “Try again” to restart it.");
  } catch (refused) {
    error = toApiError(refused);
  }
  if (id === selectedId.value) report.value = { state: "failed", error };
}

/** A page of the selected capture, or of the log folder. */
export const pageLink = (name: string): LinkValues => ({
  view: name === "report" ? "" : name,
  finding: "",
  rule: "",
  // The table of runs is about none in particular.
  ...(name === "runs" ? { capture: "" } : {}),
});

export const ruleLink = (id: string): LinkValues => ({ ...pageLink("about"), rule: id });

/** A capture's report. */
export const captureLink = (id: string): LinkValues => ({ ...pageLink("report"), capture: id });

/** Opens a finding on the report page. */
export function openFinding(id: string): void {
  if (page.value === "report") writeState(findingLink(id));
  else go({ ...findingLink(id), view: "" });
}

export const compareLink = (base: string | null, targets: string[]): LinkValues => ({
  ...pageLink("compare"),
  base: base ?? "",
  target: targets.join(","),
});

/** Handles TensorBoard's reload button: scans the logdir again, and reloads a changed report. */
export async function reload(): Promise<void> {
  const id = selectedId.value;
  await loadCaptures();
  // Somebody else may have had the changed files analyzed already.
  const isStale = report.value.state !== "ready" || selectedCapture.value?.version !== shownVersion;
  if (id !== null && id === selectedId.value && isStale && report.value.state !== "running") {
    await showCapture(id);
  }
}
