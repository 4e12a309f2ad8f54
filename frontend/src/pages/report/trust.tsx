// How far a report can be trusted: a badge, and the notes that say why.
import type { JSX } from "preact";
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

/** `Steps left out: 10, 11 (partial: …)`; empty if all are used. */
export function stepsLeftOut({ steps }: Report): string {
  const byReason = new Map<string, number[]>();
  for (const { index, reason } of steps.excluded) byReason.set(reason, [...(byReason.get(reason) ?? []), index]);
  const parts = [...byReason].map(([reason, numbers]) => `${listed(numbers)} (${reason})`);
  return parts.length ? `Steps left out: ${parts.join("; ")}.` : "";
}

const MOST_STEPS = 12;

function listed(numbers: readonly number[]): string {
  const more = numbers.length - MOST_STEPS;
  return numbers.slice(0, MOST_STEPS).join(", ") + (more > 0 ? ` and ${more} more` : "");
}
