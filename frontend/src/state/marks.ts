// Which captures got slower or faster: than the recording before, or than the pinned baseline.
import { computed, signal } from "@preact/signals";
import type { Mark } from "./answers";
import { fetchMarks } from "./api";
import { isExported } from "./exported";
import { link, writeState } from "./link";

const KEY = "perf_advisor.baseline";

/** The browser may refuse storage, as in a sandboxed frame. The URL still names the baseline. */
function readKept(): string {
  try {
    return globalThis.localStorage?.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

const kept = signal(readKept());

/** The id of the pinned baseline: the one that the link names, or the last that was pinned here. */
export const pinned = computed(() => link.value.pin || kept.value || null);

export function pin(id: string | null): void {
  kept.value = id ?? "";
  writeState({ pin: id ?? "" });
  try {
    if (id === null) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, id);
  } catch {
    // It lasts as long as the URL names it.
  }
}

export const marks = signal<Readonly<Record<string, Mark>>>({});

/** Reads the marks again, as more captures are analyzed or another baseline is pinned. */
export async function loadMarks(baseline: string | null, signal: AbortSignal): Promise<void> {
  if (isExported) return;
  try {
    const found = await fetchMarks(baseline, signal);
    if (!signal.aborted) marks.value = found;
  } catch {
    // The table is whole without marks.
  }
}
