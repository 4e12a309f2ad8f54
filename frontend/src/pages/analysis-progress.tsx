// The progress of an analysis.
import type { JSX } from "preact";
import type { Progress } from "../state/answers";
import { formatPlural } from "../format";
import { cancelSelected } from "../state/store";

export function AnalysisProgress({ progress }: { progress: Progress }): JSX.Element {
  const { stage, progress: share, queue_position: position } = progress;
  const isQueued = progress.status === "queued";
  const percent = share === null ? null : Math.round(share * 100);
  return (
    <section class="card waiting" aria-labelledby="waiting">
      <h1 id="waiting">{isQueued ? "Waiting for another analysis" : "Analyzing the profile"}</h1>
      <p class="muted" role="status">
        {isQueued && position !== null && position > 0
          ? `${formatPlural(position, "capture")} ahead of this one`
          : stage || "Starting"}
        {percent !== null && !isQueued && ` · ${percent} %`}
      </p>
      <div
        class={`progress${percent === null ? " progress-open" : ""}`}
        role="progressbar"
        aria-label="Analysis"
        aria-valuemin={0}
        aria-valuemax={100}
        {...(percent === null ? {} : { "aria-valuenow": percent })}
      >
        <span style={percent === null ? {} : { width: `${percent}%` }} />
      </div>
      <button type="button" onClick={() => void cancelSelected()}>
        Cancel
      </button>
    </section>
  );
}
