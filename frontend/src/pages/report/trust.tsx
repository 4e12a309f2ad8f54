// How far a report can be trusted: a badge, and the notes that say why.
import type { JSX } from "preact";
import { formatPlural } from "../../format";
import type { Report } from "../../report";

export type TrustLevel = NonNullable<Report["trust"]>["level"];

const WORDS: Record<TrustLevel, string> = { solid: "solid recording", limited: "limited trust", "do not act": "do not act" };
const STYLES: Record<TrustLevel, string> = { solid: "solid", limited: "limited", "do not act": "none" };

/** `reason` says why, in half a sentence. */
export const TrustBadge = ({ level, reason = "" }: { level: TrustLevel; reason?: string | undefined }): JSX.Element => (
  <span class={`badge badge-trust-${STYLES[level]}`}>
    {WORDS[level]}
    {reason && `: ${reason}`}
  </span>
);

/** `Left out: step 7 (partial: …); 20 steps (warm-up)`; empty if all are used. */
export function stepsLeftOut({ steps }: Report): string {
  const byReason = new Map<string, number[]>();
  for (const { index, reason } of steps.excluded) byReason.set(reason, [...(byReason.get(reason) ?? []), index]);
  const parts = [...byReason].map(([reason, numbers]) => `${listed(numbers)} (${reason})`);
  return parts.length ? `Left out: ${parts.join("; ")}.` : "";
}

const MOST_STEPS = 12;

/** `step 7`, `steps 3, 5 and 7`, or only how many there are. */
function listed(numbers: readonly number[]): string {
  if (numbers.length === 1) return `step ${numbers[0]}`;
  if (numbers.length > MOST_STEPS) return formatPlural(numbers.length, "step");
  return `steps ${numbers.slice(0, -1).join(", ")} and ${numbers.at(-1)}`;
}
