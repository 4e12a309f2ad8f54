// What is under the pointer, in words.
import type { JSX } from "preact";
import { findingAt } from "../finding-ids";
import { formatDuration } from "../format";
import type { Report } from "../report";
import { describeTime, factsOfBox } from "./event-facts";
import { findingsAt } from "./picture";
import type { Pointed } from "./plane";

/** Room for the words, beside the pointer. */
const WIDE_PX = 330;

export function Tip({ pointed, report }: { pointed: Pointed; report: Report | null }): JSX.Element | null {
  const { x, y, hit, picture, atNs } = pointed;
  if (!picture) return null;
  const facts = hit
    ? factsOfBox(hit.picture, hit.box, atNs, report)
    : { name: formatDuration(atNs), time: "", details: describeTime(picture, atNs), findings: findingsAt(picture, atNs) };
  const isRight = x + WIDE_PX > window.innerWidth - 60;
  return (
    <div class="timeline-tip" style={{ top: `${y + 16}px`, ...(isRight ? { right: "8px" } : { left: `${x + 12}px` }) }} aria-hidden="true">
      <strong>{facts.name}</strong>
      <span>{facts.time}</span>
      {facts.details.map(([label, value]) => (
        <span key={label}>
          <span class="muted">{label}</span> {value}
        </span>
      ))}
      {facts.findings.map((index) => (
        <span key={index}>
          <span class="muted">Finding</span> {report && findingAt(report.findings, index)?.title}
        </span>
      ))}
    </div>
  );
}
