// Content that is fetched when it is shown.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { toApiError } from "../state/answers";
import type { Load } from "../state/polling";
import { Failure } from "./failure";
import { Loading } from "./loading";

interface Props<T> {
  /** Identifies what is fetched; a new key fetches again. */
  of: string;
  fetch(signal: AbortSignal): Promise<T>;
  children(value: T): ComponentChildren;
}

export function Fetched<T>({ of, fetch, children }: Props<T>): JSX.Element {
  const [load, setLoad] = useState<Load<T>>({ state: "loading" });
  const [attempt, setAttempt] = useState(0);
  useEffect(() => {
    const controller = new AbortController();
    setLoad({ state: "loading" });
    fetch(controller.signal).then(
      (value) => setLoad({ state: "ready", value }),
      (error: unknown) => {
        if (!controller.signal.aborted) setLoad({ state: "failed", error: toApiError(error) });
      },
    );
    return () => controller.abort();
  }, [of, attempt]);
  if (load.state === "ready") return <>{children(load.value)}</>;
  if (load.state === "failed") {
    return <Failure error={load.error} onRetry={() => setAttempt(attempt + 1)} />;
  }
  return <Loading />;
}
