// What the user says about runs: a price, kept by the browser, and where the run ends.
import { signal } from "@preact/signals";

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

export const runOptions = signal<RunOptions>({ pricePerDeviceHour: readPrice(), totalSteps: null });

export function setPrice(price: number | null): void {
  runOptions.value = { ...runOptions.value, pricePerDeviceHour: price };
  try {
    if (price === null) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, String(price));
  } catch {
    // It lasts until a reload.
  }
}

export function setTotalSteps(totalSteps: number | null): void {
  runOptions.value = { ...runOptions.value, totalSteps };
}
