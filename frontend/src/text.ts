// Phrases made from the fields of a report.
import type { FindingInfo, Report, SavingBounds, SavingInfo, Scope } from "./report";
import { CAUSES } from "./causes";
import { formatDuration, formatDurationRange, formatPlural, formatShare } from "./format";

const FRAMEWORKS: Record<string, string> = {
  pytorch: "PyTorch",
  torch: "PyTorch",
  tensorflow: "TensorFlow",
  jax: "JAX",
  xla: "XLA",
  onnx: "ONNX Runtime",
  none: "No framework",
};

export const frameworkName = (framework: string): string =>
  FRAMEWORKS[framework.toLowerCase()] ??
  (framework && framework !== "unknown" ? framework : "Unknown framework");

/** `2026-11-21 04:33:38`, from the name of a session's folder. */
export function sessionName(session: string): string {
  const match = /^(\d{4})_(\d\d)_(\d\d)_(\d\d)_(\d\d)_(\d\d)(?:\.\d+)?$/.exec(session);
  if (!match) return session;
  const [, year, month, day, hour, minute, second] = match;
  return `${year}-${month}-${day} ${hour}:${minute}:${second}`;
}

/** The expected saving, `41.2 ms`, and its range, `28–54 ms`. */
export function describeSaving(saving: SavingInfo): { expected: string; range: string } {
  const range = formatDurationRange(saving.low_ns, saving.high_ns);
  // Nothing is expected but something is possible: show the upper bound.
  if (saving.expected_ns <= 0) {
    return { expected: `up to ${formatDurationRange(saving.high_ns, saving.high_ns)}`, range: "" };
  }
  // A range whose ends agree in the two digits shown adds nothing.
  return { expected: formatDuration(saving.expected_ns), range: /[–<]|to/.test(range) ? range : "" };
}

/** What a finding may save where nothing tells how much: `up to 11.8 ms (62.4 %)`. */
export const describeBounds = ({ low_ns = 0, high_ns, share_high }: SavingBounds): string =>
  `${low_ns > 0 ? `${formatDuration(low_ns)} ` : "up "}to ${formatDuration(high_ns)} (${formatShare(share_high)})`;

/** What a finding adds to those above, where that is not its whole saving: less where they overlap,
 *  more where each alone would leave the other to hold up the step. */
export function describeMarginal({ saving, refines }: Pick<FindingInfo, "saving" | "refines">): string {
  if (!saving) return "";
  if (refines !== null) return "part of the saving above";
  const added = formatDuration(saving.marginal_ns);
  if (added === formatDuration(saving.expected_ns)) return "";
  return `adds ${saving.marginal_ns > 0 ? added : "nothing"} to the changes above`;
}

export function describeSteps({ steps }: Pick<Report, "steps">): string {
  const used = formatPlural(steps.used, "step");
  return `${used} ${steps.is_inferred ? "inferred from" : "from"} ${steps.source}`;
}

/** The period that times refer to: `per step`, unless the recording has no steps. */
export const describePeriod = ({ steps }: Pick<Report, "steps">): string =>
  steps.used > 0 ? "per step" : "in the recording";

/** `steps 3–8 · rank 0`. */
export function describeScope({ ranks, first_step, last_step }: Scope): string {
  const parts: string[] = [];
  if (first_step !== null && last_step !== null) {
    parts.push(first_step === last_step ? `step ${first_step}` : `steps ${first_step}–${last_step}`);
  }
  if (ranks.length === 1) parts.push(`rank ${ranks[0]}`);
  else if (ranks.length > 8) parts.push(formatPlural(ranks.length, "rank"));
  else if (ranks.length > 1) parts.push(`ranks ${ranks.join(", ")}`);
  return parts.join(" · ");
}

export const BASES: Record<string, string> = {
  measured: "This time was measured as lost in the trace.",
  simulated: "The step was replayed with the change applied to its recorded events.",
  modeled: "A formula, such as a roofline, predicts the time from the recorded work.",
  heuristic: "A rule of thumb: treat it as a direction, not as a number.",
};

/** A reason as a sentence of its own. */
export const asSentence = (reason: string): string =>
  `${reason.charAt(0).toUpperCase()}${reason.slice(1)}${/[.!?]$/.test(reason) ? "" : "."}`;

/** Tells whether `text` contains every word of a search query. */
export function matchesQuery(text: string, query: string): boolean {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return words.every((word) => text.toLowerCase().includes(word));
}

/** `device-events` as words. */
export function asWords(name: string): string {
  const words = name.replace(/[-_]/g, " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** The label of a cause. */
export const causeName = (cause: string): string => CAUSES[cause]?.label ?? asWords(cause);

/** The names of the ranks: by number, else by host. */
export const rankNames = ({ workers }: Pick<Report, "workers">): string[] =>
  workers.map(({ rank, host }, index) => (rank !== null ? `rank ${rank}` : host || `process ${index}`));

