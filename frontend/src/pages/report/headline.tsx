// The headline of a report, its caption and the finding to begin with.
import type { JSX } from "preact";
import { FirstFinding } from "../../findings/first-finding";
import type { Report } from "../../report";
import { TrustBadge, stepsLeftOut } from "./trust";
import { Prose } from "../../widgets/prose";

export function Headline({ report }: { report: Report }): JSX.Element {
  const leftOut = stepsLeftOut(report);
  return (
    <header class="headline">
      <h1>
        <Prose text={report.headline} />
      </h1>
      <p class="subline">
        <TrustBadge level={report.trust?.level} reason={report.trust?.reasons[0]?.in_short} />
        {report.is_synthetic && <span class="badge">synthetic example</span>}
        <span>{report.caption}</span>
      </p>
      {leftOut && (
        <p class="muted">
          <Prose text={leftOut} />
        </p>
      )}
      <FirstFinding report={report} />
    </header>
  );
}
