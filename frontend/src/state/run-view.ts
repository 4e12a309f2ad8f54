// The view of the run that the selected capture belongs to, read once for all that show it.
import { signal } from "@preact/signals";
import type { TrainingView } from "../report";
import { toApiError } from "./answers";
import { fetchTraining } from "./api";
import { type Load, attempts } from "./polling";
import { type RunOptions, runOptions } from "./run-options";

/** The view of a capture's run, null if its scalars say nothing about its speed. */
export type RunViewLoad = Load<TrainingView | null>;

const shown = signal<{ captureId: string; load: RunViewLoad } | null>(null);
let reading: { captureId: string; options: RunOptions; controller: AbortController } | null = null;

/** The view as far as it is read, of a capture that is not the last one: not at all. */
export const runViewOf = (captureId: string | undefined): RunViewLoad =>
  shown.value !== null && shown.value.captureId === captureId ? shown.value.load : { state: "loading" };

/** Reads the view, unless that is under way. Until one for other options is there, the last one stays. */
export function loadRunView(captureId: string, isRetry = false): void {
  const options = runOptions.peek();
  if (!isRetry && reading?.captureId === captureId && reading.options === options) return;
  reading?.controller.abort();
  const controller = new AbortController();
  const current = (reading = { captureId, options, controller });
  if (isRetry || shown.peek()?.captureId !== captureId) shown.value = { captureId, load: { state: "loading" } };
  void poll(captureId, options, controller.signal, isRetry).then(() => {
    if (reading === current) reading = null;
  });
}

async function poll(captureId: string, options: RunOptions, signal: AbortSignal, isRetry: boolean): Promise<void> {
  const show = (load: RunViewLoad): void => {
    const hasLast = load.state === "running" && shown.peek()?.load.state === "ready";
    if (!signal.aborted && !hasLast) shown.value = { captureId, load };
  };
  for await (const _ of attempts(signal)) {
    try {
      const answer = await fetchTraining(captureId, options, signal, isRetry);
      isRetry = false;
      if ("view" in answer) return show({ state: "ready", value: answer.view });
      show({ state: "running", progress: answer.progress });
    } catch (error) {
      return show({ state: "failed", error: toApiError(error) });
    }
  }
}
