// Analyzes captures, a few at once, for the table of runs and their histories.
import { computed, signal } from "@preact/signals";
import { isExported } from "./exported";
import { fetchRow } from "./api";
import { attempts } from "./polling";
import { captures, showRow } from "./store";

/** How many captures a page analyzes without being asked: a screen of rows, in about a minute. */
const UNASKED = 12;
/** Larger captures take long, so the user decides. */
const UNASKED_BYTES = 50e6;

/** What the user asked for, in order. */
const asked = signal<readonly string[]>([]);
/** What a page asked for by itself; what is on screen now takes the place of what was before. */
const unasked = signal<readonly string[]>([]);
/** The captures on screen, from the top. */
const onScreen = signal<readonly string[]>([]);
/** Those under way. */
export const analyzing = signal<readonly string[]>([]);

/** The captures that still have to be analyzed: first those on screen, then in the order asked for. */
export const waiting = computed<readonly string[]>(() => {
  const wanted = new Set([...asked.value, ...unasked.value]);
  const seen = onScreen.value.filter((id) => wanted.has(id));
  return [...new Set([...seen, ...wanted])];
});

/** Two cores analyze two at once. Only one more waits, so a report that the user opens is at most third in the queue. */
const AT_ONCE = 3;
const begun = new Set<string>();

/** The first few of some captures that are new and small, and were not begun before. */
function chooseUnasked(ids: readonly string[]): string[] {
  if (captures.value.state !== "ready" || isExported) return [];
  const small = new Set(
    captures.value.value.captures
      .filter(({ status, size_bytes: size }) => status === "new" && size <= UNASKED_BYTES)
      .map(({ id }) => id),
  );
  return ids.filter((id) => small.has(id) && !begun.has(id)).slice(0, UNASKED);
}

/** Tells what is on screen: it is analyzed first, and a part of it without being asked. */
export function noteOnScreen(ids: readonly string[]): void {
  onScreen.value = ids;
  analyzeUnasked(ids);
}

/** Analyzes the first few of some captures that are new and small, each once. */
export function analyzeUnasked(ids: readonly string[]): void {
  unasked.value = chooseUnasked(ids);
  work();
}

export function analyze(ids: readonly string[]): void {
  asked.value = [...new Set([...asked.value, ...ids])];
  work();
}

/** Starts no more analyses. Those under way end by themselves. */
export function stopAnalyses(): void {
  for (const id of unasked.value) begun.add(id);
  asked.value = [];
  unasked.value = [];
}

function work(): void {
  while (analyzing.value.length < AT_ONCE) {
    const next = waiting.value.find((id) => !analyzing.value.includes(id));
    if (next === undefined) return;
    begun.add(next);
    analyzing.value = [...analyzing.value, next];
    void finish(next);
  }
}

async function finish(id: string): Promise<void> {
  try {
    await analyzeOne(id);
  } catch {
    // TensorBoard is not responding, or the capture is gone. The row stays as it was.
  }
  const isOther = (other: string): boolean => other !== id;
  analyzing.value = analyzing.value.filter(isOther);
  asked.value = asked.value.filter(isOther);
  unasked.value = unasked.value.filter(isOther);
  work();
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
