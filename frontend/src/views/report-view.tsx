// A whole report.
import type { JSX } from "preact";
import type { Report } from "../report";
import { Breakdown } from "./breakdown";
import { Checks } from "./checks";
import { Details } from "./details";
import { Findings } from "./findings";
import { Headline } from "./headline";
import { KeyNumbers } from "./key-numbers";
import { Notes } from "./notes";
import { Steps } from "./steps";

export function ReportView({ report, captureId }: { report: Report; captureId: string }): JSX.Element {
  return (
    <>
      <Headline report={report} />
      <Breakdown report={report} />
      <KeyNumbers report={report} />
      <Findings report={report} captureId={captureId} />
      <Steps report={report} captureId={captureId} />
      <Notes notes={report.notes} />
      <Checks outcomes={report.outcomes} />
      <Details report={report} />
    </>
  );
}
