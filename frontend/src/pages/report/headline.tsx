// The headline of a report, how far to trust it, and what was recorded.
import type { JSX } from "preact";
import { mayAct } from "../../findings/list";
import type { Report } from "../../report";
import { TrustBadge } from "./trust";
import { Prose } from "../../widgets/prose";

export function Headline({ report }: { report: Report }): JSX.Element {
  const { trust } = report;
  return (
    <header class="headline">
      <h1>
        <Prose text={report.headline} />
      </h1>
      <p class="subline">
        {/* Not to act on a recording is what the headline is about. */}
        {trust && <TrustBadge level={trust.level} reason={mayAct(report) ? trust.reasons[0]?.in_short : ""} />}
        {report.is_synthetic && <span class="badge">synthetic example</span>}
        <span>{report.caption}</span>
      </p>
    </header>
  );
}
