// Analyzes captures one after another, for the table of runs and their histories.
import { signal } from "@preact/signals";
import { isExported } from "./exported";
import { fetchRow } from "./api";
import { attempts } from "./polling";
import { captures, showRow } from "./store";

/** How many captures a page analyzes without being asked: a screen of rows, in about a minute. */
const UNASKED = 12;
/** Larger captures take long, so the user decides. */
const UNASKED_BYTES = 50e6;

/** The captures that still have to be analyzed; the first one is under way. */
export const waiting = signal<readonly string[]>([]);
let isWorking = false;
let isBegun = false;
const begun = new Set<string>();

/** Analyzes the first few captures that are new. */
export function beginAnalyses(): void {
  if (isBegun || isExported || captures.value.state !== "ready") return;
  isBegun = true;
  analyzeUnasked(captures.value.value.captures.map(({ id }) => id));
}

/** Analyzes the first few of some captures that are new and small, each once. */
export function analyzeUnasked(ids: string[]): void {
  if (captures.value.state !== "ready") return;
  const small = new Set(
    captures.value.value.captures
      .filter(({ status, size_bytes: size }) => status === "new" && size <= UNASKED_BYTES)
      .map(({ id }) => id),
  );
  const chosen = ids.filter((id) => small.has(id)).slice(0, UNASKED).filter((id) => !begun.has(id));
  for (const id of chosen) begun.add(id);
  if (chosen.length > 0) analyze(chosen);
}

export function analyze(ids: string[]): void {
  waiting.value = [...new Set([...waiting.value, ...ids])];
  void work();
}

/** Starts no more analyses. The one under way ends by itself. */
export function stopAnalyses(): void {
  waiting.value = [];
}

async function work(): Promise<void> {
  if (isWorking) return;
  isWorking = true;
  // One at a time, so that a report that the user opens is at most second in the queue.
  for (let [id] = waiting.value; id !== undefined; [id] = waiting.value) {
    const done = id;
    try {
      await analyzeOne(done);
    } catch {
      // TensorBoard is not responding, or the capture is gone. The row stays as it was.
    }
    waiting.value = waiting.value.filter((other) => other !== done);
  }
  isWorking = false;
}

async function analyzeOne(id: string): Promise<void> {
  let isRetry = true; // the user asked for it, so an earlier failure does not count
  for await (const _ of attempts(new AbortController().signal)) {
    const row = await fetchRow(id, undefined, isRetry);
    isRetry = false;
    showRow(row);
    if (row.status !== "queued" && row.status !== "running") return;
  }
}
