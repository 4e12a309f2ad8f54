// What the scalars of the run say about the steps that are not profiled.
import type { JSX } from "preact";
import type { Report } from "../../report";
import { runViewOf } from "../../state/run-view";
import { pageLink, selectedCapture } from "../../state/store";
import { PageLink } from "../../widgets/page-link";
import { Prose } from "../../widgets/prose";

interface Props {
  report: Report;
  captureId: string;
}

export function WholeRun({ report, captureId }: Props): JSX.Element | null {
  if (report.whole_run) return <Section sentences={report.whole_run.sentences} />;
  if (!selectedCapture.value?.reads_scalars) return null;
  const load = runViewOf(captureId);
  // A report is whole without it, and the page of the run shows what failed.
  if (load.state === "failed") return null;
  if (load.state !== "ready") return <Section sentences={["Reading the scalars of the run …"]} />;
  const recording = load.value?.recordings.find(({ capture_id: id }) => id === captureId);
  return recording?.whole_run ? <Section sentences={recording.whole_run.sentences} isLinked /> : null;
}

function Section({ sentences, isLinked = false }: { sentences: string[]; isLinked?: boolean }): JSX.Element {
  return (
    <section aria-labelledby="whole-run">
      <div class="section-head">
        <h2 id="whole-run">The whole run</h2>
        {isLinked && <PageLink to={pageLink("time")}>Its steps over time</PageLink>}
      </div>
      <p class="whole-run">
        <Prose text={sentences.join(" ")} />
      </p>
    </section>
  );
}
