// How far a report can be trusted: a badge, and the notes that say why.
import type { JSX } from "preact";
import type { NoteInfo, Report } from "../../report";

export type TrustLevel = NonNullable<Report["trust"]>["level"];

const WORDS: Record<TrustLevel, string> = { solid: "", limited: "limited trust", "do not act": "do not act" };

/** `reason` says why, in half a sentence. */
export function TrustBadge({ level, reason }: { level: TrustLevel | undefined; reason?: string | undefined }): JSX.Element | null {
  const words = level && WORDS[level];
  if (!words) return null;
  return <span class={`badge badge-trust-${level === "limited" ? "limited" : "none"}`}>{reason ? `${words}: ${reason}` : words}</span>;
}

/** Whether a note is to be read before the numbers: a problem, or a reason for less trust. */
export const isReason = ({ trust }: Report) => {
  const messages = new Set(trust?.reasons.map(({ message }) => message));
  return ({ severity, message }: NoteInfo): boolean => severity === "error" || messages.has(message);
};

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
