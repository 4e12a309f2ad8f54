// Asking again until an answer is ready.
import type { ApiError, Progress } from "./answers";

export type Load<T> =
  | { state: "loading" }
  | { state: "running"; progress: Progress }
  | { state: "failed"; error: ApiError }
  | { state: "ready"; value: T };

const FIRST_WAIT_MS = 100;
const LONGEST_WAIT_MS = 5_000;
/** What is ready after a second is then seen within a tenth of that. */
const BACK_OFF = 1.1;

function sleep(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

/** Yields at once and then after growing pauses, until `signal` aborts. */
export async function* attempts(signal: AbortSignal): AsyncGenerator<void> {
  for (let waitMs = FIRST_WAIT_MS; !signal.aborted; waitMs = Math.min(waitMs * BACK_OFF, LONGEST_WAIT_MS)) {
    yield;
    await sleep(waitMs, signal);
  }
}
