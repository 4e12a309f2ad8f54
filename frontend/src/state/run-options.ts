// What the user says about runs: a price, which the browser keeps, and where the run ends. Both are in
// the URL, so that who opens a link sees the same numbers.
import { computed, signal } from "@preact/signals";
import { link, writeState } from "./link";

export interface RunOptions {
  /** In any currency. */
  pricePerDeviceHour: number | null;
  totalSteps: number | null;
}

const KEY = "perf_advisor.price_per_device_hour";

/** The browser may refuse storage, as in a sandboxed frame. The price then lasts until a reload. */
function readPrice(): number | null {
  try {
    return toPrice(globalThis.localStorage?.getItem(KEY) ?? "");
  } catch {
    return null;
  }
}

/** A number above 0; null for anything else. */
export function toPrice(text: string): number | null {
  const value = text.trim() === "" ? NaN : Number(text);
  return value > 0 && value < Infinity ? value : null;
}

/** A whole number above 0; null for anything else. */
export function toSteps(text: string): number | null {
  const value = toPrice(text);
  return value !== null && Number.isSafeInteger(value) ? value : null;
}

const keptPrice = signal(readPrice());
const price = computed(() => toPrice(link.value.price ?? "") ?? keptPrice.value);
const lastStep = computed(() => toSteps(link.value.last_step ?? ""));

export const runOptions = computed<RunOptions>(() => ({ pricePerDeviceHour: price.value, totalSteps: lastStep.value }));

/** Names the price that the browser kept in the URL, for who gets a link. */
export function linkPrice(): void {
  if (price.value !== null) writeState({ price: String(price.value) });
}

export function setPrice(next: number | null): void {
  keptPrice.value = next;
  writeState({ price: next === null ? "" : String(next) });
  try {
    if (next === null) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, String(next));
  } catch {
    // It lasts as long as the URL names it.
  }
}

export const setTotalSteps = (steps: number | null): void => writeState({ last_step: steps === null ? "" : String(steps) });
