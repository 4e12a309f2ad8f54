// What matters most, in one sentence, and what it was seen in.
import type { JSX } from "preact";
import type { Report } from "../../report";
import { describeCapture } from "../../text";
import { FirstChange } from "../../findings/first-finding";
import { Prose } from "../../widgets/prose";

export function Headline({ report }: { report: Report }): JSX.Element {
  return (
    <header class="headline">
      <h1>
        <Prose text={report.headline} />
      </h1>
      <p class="subline">
        {report.is_synthetic && <span class="badge">synthetic example</span>}
        {describeCapture(report).map((part) => (
          <span key={part}>{part}</span>
        ))}
      </p>
      <FirstChange report={report} />
    </header>
  );
}
