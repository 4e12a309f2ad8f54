// The report page.
import type { JSX } from "preact";
import type { CaptureList } from "../../state/answers";
import type { Report } from "../../report";
import { Breakdown } from "./breakdown";
import { Checks } from "./checks";
import { Details } from "./details";
import { FindingList } from "../../findings/list";
import { Headline } from "./headline";
import { KeyNumbers } from "./key-numbers";
import { Notes, Problems } from "../../widgets/notes";

interface Props {
  report: Report;
  captureId: string;
  rejected: CaptureList["rejected"];
}

export function ReportPage({ report, captureId, rejected }: Props): JSX.Element {
  return (
    <>
      <Headline report={report} />
      <Problems notes={report.notes.filter(({ severity }) => severity === "error")} />
      <Breakdown report={report} />
      <KeyNumbers report={report} />
      <FindingList report={report} captureId={captureId} />
      <Notes notes={report.notes.filter(({ severity }) => severity !== "error")} />
      <Checks outcomes={report.outcomes} />
      <Details report={report} rejected={rejected} />
    </>
  );
}
