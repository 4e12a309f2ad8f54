// The view of the run that a capture belongs to, read when it is shown.
import type { ComponentChildren, JSX } from "preact";
import { useEffect } from "preact/hooks";
import { runOptions } from "../state/run-options";
import { type RunViewLoad, loadRunView, runViewOf } from "../state/run-view";

interface Props {
  captureId: string;
  children(load: RunViewLoad, retry: () => void): ComponentChildren;
}

export function RunView({ captureId, children }: Props): JSX.Element {
  const options = runOptions.value;
  useEffect(() => loadRunView(captureId), [captureId, options]);
  return <>{children(runViewOf(captureId), () => loadRunView(captureId, true))}</>;
}
