// How findings are named in links, and by the analysis.
import type { FindingInfo } from "./report";

/** An id for each finding: its rule, and a number if the rule has several findings. */
export function findingIds(findings: FindingInfo[]): string[] {
  const counts = new Map<string, number>();
  return findings.map(({ rule_id: ruleId }) => {
    const count = (counts.get(ruleId) ?? 0) + 1;
    counts.set(ruleId, count);
    return count === 1 ? ruleId : `${ruleId}~${count}`;
  });
}

/** The place that the analysis gave a finding, which routes go by: what was tried since may have moved it. */
export const analyzedPlace = (findings: FindingInfo[], finding: FindingInfo): number =>
  finding.analyzed_place ?? findings.indexOf(finding);

/** The finding that the analysis gave a place. */
export const findingAt = (findings: FindingInfo[], place: number): FindingInfo | undefined =>
  findings.find((finding) => analyzedPlace(findings, finding) === place);
