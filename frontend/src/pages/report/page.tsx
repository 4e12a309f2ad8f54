// The report page.
import type { JSX } from "preact";
import type { Report } from "../../report";
import { Breakdown } from "./breakdown";
import { Checks } from "./checks";
import { Details } from "./details";
import { FindingList } from "../../findings/list";
import { Headline } from "./headline";
import { KeyNumbers } from "./key-numbers";
import { Notes, Problems } from "../../widgets/notes";
import { isReason } from "./trust";
import { WholeRun } from "./whole-run";
import { Recording } from "../recording";
import { pageLink } from "../../state/store";
import { PageLink } from "../../widgets/page-link";

interface Props {
  report: Report;
  captureId: string;
}

export function ReportPage({ report, captureId }: Props): JSX.Element {
  const views = new Set(report.available_views);
  if (views.has("snapshot") && report.overview.window_ns === 0) return <SnapshotReport report={report} captureId={captureId} />;
  // A log of torch.compile may show no time, and still be worth reading.
  const hasTime = report.overview.window_ns > 0;
  if (!hasTime && report.findings.length === 0) return <EmptyReport report={report} />;
  return (
    <>
      <Headline report={report} />
      <WholeRun report={report} captureId={captureId} />
      <Problems notes={report.notes.filter(isReason(report))} />
      {hasTime && <Breakdown report={report} captureId={captureId} />}
      {hasTime && <KeyNumbers report={report} />}
      <FindingList report={report} captureId={captureId} />
      <Notes notes={report.notes.filter((note) => !isReason(report)(note))} />
      <Checks report={report} />
      <Details report={report} />
    </>
  );
}

/** A memory snapshot without a profile: no time, so no breakdown of it. */
function SnapshotReport({ report, captureId }: Props): JSX.Element {
  return (
    <>
      <Headline report={report} />
      <Problems notes={report.notes.filter(isReason(report))} />
      <KeyNumbers report={report} />
      <p>
        <PageLink to={pageLink("memory")}>Memory over the history, and who holds the peak</PageLink>
      </p>
      <FindingList report={report} captureId={captureId} />
      <Notes notes={report.notes.filter((note) => !isReason(report)(note))} />
      <Checks report={report} />
    </>
  );
}

/** A profile in which nothing was recorded: what happened, and how to record it. */
function EmptyReport({ report }: { report: Report }): JSX.Element {
  return (
    <>
      <Headline report={report} />
      <Problems notes={report.notes.filter(({ severity }) => severity !== "info")} />
      <section class="card" aria-labelledby="recording">
        <div class="card-head">
          <h2 id="recording">Record a profile</h2>
        </div>
        <Recording />
      </section>
    </>
  );
}
