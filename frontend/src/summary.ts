// A report in five lines of Markdown, for an issue or a chat.
import { formatDuration, formatShare } from "./format";
import type { FindingInfo, Report } from "./report";
import { describePeriod, describeSaving } from "./text";

const MOST_CAUSES = 4;
const MOST_FINDINGS = 3;

/** Text that Markdown shows as it is; code between backticks stays code. */
export const asMarkdown = (text: string): string =>
  text
    .replace(/\s+/g, " ")
    .split(/(`[^`]*`)/)
    .map((part, place) => (place % 2 === 1 ? part : part.replace(/[\\*_<>[\]|#~`]/g, "\\$&")))
    .join("");

function describeFinding({ title, saving, proof }: FindingInfo, place: number): string {
  const number = `${place + 1}. ${asMarkdown(title)}`;
  if (proof) return `${number} (tried: ${asMarkdown(proof.text)})`;
  if (!saving) return number;
  const { expected, range } = describeSaving(saving);
  return `${number} (saves ${expected}${range && `, ${range}`})`;
}

/** The headline, the run, where the time goes, what to change, and the link; `address` is that of the page. */
export function summaryOf(report: Report, address: string): string {
  const { overview } = report;
  const parts = overview.breakdown
    .filter(({ total_ns: ns }) => ns > 0)
    .sort((a, b) => b.total_ns - a.total_ns)
    .slice(0, MOST_CAUSES)
    .map(({ label, total_ns: ns }) => `${label} ${formatShare(ns / overview.window_ns)}`);
  const stepNs = overview.step_time_ns ?? overview.window_ns;
  // What is refined is part of another one, and what is set aside is no advice.
  const offered = report.findings.filter(({ refines, remark }) => refines === null && !remark?.wont_fix);
  return [
    `**${asMarkdown(report.headline)}**`,
    `- Run: ${asMarkdown([report.run, report.caption].filter(Boolean).join(", "))}`,
    `- Time: ${[`${formatDuration(stepNs)} ${describePeriod(report)}`, ...parts].join("; ")}`,
    `- Changes: ${offered.slice(0, MOST_FINDINGS).map(describeFinding).join("; ") || "none found"}`,
    `- [Perf Advisor](${address.replaceAll("(", "%28").replaceAll(")", "%29")})`,
  ].join("\n");
}
