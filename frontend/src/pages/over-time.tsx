// What changes over time: the steps of this recording, the recordings of its run, and the run by its scalars.
import type { JSX } from "preact";
import type { Report } from "../report";
import { selectedCapture } from "../state/store";
import { isRecordedAgain } from "../state/capture-name";
import { History } from "./history";
import { Steps } from "./steps";
import { Training } from "./training";

interface Props {
  report: Report;
  captureId: string;
}

/** Each part is shown once those above it are there, so that nothing is pushed down. */
export function OverTimePage({ report, captureId }: Props): JSX.Element {
  const capture = selectedCapture.value;
  const hasSteps = report.available_views?.includes("steps") ?? false;
  const isAgain = capture !== undefined && isRecordedAgain(capture);
  let parts = capture?.has_scalars ? <Training key={captureId} captureId={captureId} isPart={hasSteps || isAgain} /> : null;
  if (isAgain) parts = <History captureId={captureId} isPart={hasSteps}>{parts}</History>;
  return hasSteps ? <Steps report={report} captureId={captureId}>{parts}</Steps> : <>{parts}</>;
}
