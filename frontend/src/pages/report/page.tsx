// The report page: what to change and where it costs time on the first screen, everything else below.
import type { JSX } from "preact";
import type { NoteInfo, Report } from "../../report";
import { Checks } from "./checks";
import { Details } from "./details";
import { FindingList } from "../../findings/list";
import { Headline } from "./headline";
import { KeyNumbers } from "./key-numbers";
import { Notes, Problems } from "../../widgets/notes";
import { Pane } from "./pane";
import { Strip, numbersOnStrip } from "./strip";
import { WholeRun } from "./whole-run";
import { Recording } from "../recording";
import { pageLink } from "../../state/store";
import { PageLink } from "../../widgets/page-link";

interface Props {
  report: Report;
  captureId: string;
}

export function ReportPage({ report, captureId }: Props): JSX.Element {
  const hasSnapshot = report.available_views?.includes("snapshot") ?? false;
  const isTimeless = report.overview.window_ns === 0;
  const onStrip = numbersOnStrip(report);
  const isInHeadline = ({ remedy }: NoteInfo): boolean => report.headline.includes(remedy.replace(/\.$/, ""));
  const hasNumbers = !isTimeless || hasSnapshot;
  // A log of torch.compile may show no time, and still be worth reading.
  if (!hasNumbers && report.findings.length === 0) return <EmptyReport report={report} />;
  return (
    <>
      <div class="first-screen">
        <Headline report={report} />
        {hasNumbers && <Strip report={report} />}
        <div class="columns">
          <FindingList report={report} captureId={captureId} />
          <Pane report={report} captureId={captureId} />
        </div>
      </div>
      {isTimeless && hasSnapshot && (
        <p>
          <PageLink to={pageLink("memory")}>Memory over the history, and who holds the peak</PageLink>
        </p>
      )}
      <Notes notes={report.notes.map((note) => (isInHeadline(note) ? { ...note, remedy: "" } : note))} />
      {hasNumbers && <KeyNumbers numbers={report.key_numbers.filter((number) => !onStrip.includes(number))} />}
      <Checks report={report} />
      <Details report={report} />
      {/* The scalars may take a while to read: they push nothing down. */}
      <WholeRun report={report} captureId={captureId} />
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
