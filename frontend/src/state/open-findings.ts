// The places, by the analysis, of the findings that are open.
import { analyzedPlace, findingIds } from "../finding-ids";
import type { Report } from "../report";
import { openFindings } from "./store";

export const openIndices = ({ findings }: Report): number[] => {
  const ids = findingIds(findings);
  return findings.filter((_, index) => openFindings.value.has(ids[index] ?? "")).map((finding) => analyzedPlace(findings, finding));
};
