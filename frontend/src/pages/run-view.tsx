// The view of the run that a capture belongs to, read when it is shown.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { TrainingView } from "../report";
import { toApiError } from "../state/answers";
import { fetchTraining } from "../state/api";
import { type Load, attempts } from "../state/polling";
import { type RunOptions, runOptions } from "../state/run-options";

interface Props {
  captureId: string;
  children(load: Load<TrainingView | null>, retry: () => void): ComponentChildren;
}

/** Shows the last view until one for other options is there. */
export function RunView({ captureId, children }: Props): JSX.Element {
  const [load, setLoad] = useState<Load<TrainingView | null>>({ state: "loading" });
  const [attempt, setAttempt] = useState(0);
  const options = runOptions.value;
  useEffect(() => {
    const controller = new AbortController();
    void poll(captureId, options, controller.signal, attempt > 0, (next) =>
      setLoad((last) => (next.state === "running" && last.state === "ready" ? last : next)),
    );
    return () => controller.abort();
  }, [captureId, options, attempt]);
  const retry = (): void => (setLoad({ state: "loading" }), setAttempt(attempt + 1));
  return <>{children(load, retry)}</>;
}

async function poll(
  captureId: string,
  options: RunOptions,
  signal: AbortSignal,
  isRetry: boolean,
  show: (load: Load<TrainingView | null>) => void,
): Promise<void> {
  for await (const _ of attempts(signal)) {
    try {
      const answer = await fetchTraining(captureId, options, signal, isRetry);
      isRetry = false;
      if (signal.aborted) return;
      if ("view" in answer) return show({ state: "ready", value: answer.view });
      show({ state: "running", progress: answer.progress });
    } catch (error) {
      if (!signal.aborted) show({ state: "failed", error: toApiError(error) });
      return;
    }
  }
}
