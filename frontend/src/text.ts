// Small sentences put together from a report's fields.
import type { Report, SavingInfo, Scope } from "./report";
import {
  formatCount,
  formatDuration,
  formatDurationRange,
  formatPlural,
  formatShare,
} from "./format";

const FRAMEWORKS: Record<string, string> = {
  pytorch: "PyTorch",
  torch: "PyTorch",
  tensorflow: "TensorFlow",
  jax: "JAX",
  xla: "XLA",
  onnx: "ONNX Runtime",
};

export const frameworkName = (framework: string): string =>
  FRAMEWORKS[framework.toLowerCase()] ??
  (framework && framework !== "unknown" ? framework : "Unknown framework");

/** `2026-11-21 04:33:38` from a session's folder name, which the Profile tab needs as it is. */
export function sessionName(session: string): string {
  const match = /^(\d{4})_(\d\d)_(\d\d)_(\d\d)_(\d\d)_(\d\d)(?:\.\d+)?$/.exec(session);
  if (!match) return session;
  const [, year, month, day, hour, minute, second] = match;
  return `${year}-${month}-${day} ${hour}:${minute}:${second}`;
}

/** What is expected, `41.2 ms (17.2 %)`, and within which bounds, `28–54 ms`. */
export function describeSaving(saving: SavingInfo): { expected: string; range: string } {
  const range = formatDurationRange(saving.low_ns, saving.high_ns);
  // Nothing is expected, yet something is possible: the bound is what can be said.
  if (saving.expected_ns <= 0) {
    return { expected: `up to ${formatDurationRange(saving.high_ns, saving.high_ns)}`, range: "" };
  }
  const expected = `${formatDuration(saving.expected_ns)} (${formatShare(saving.share_expected)})`;
  // Bounds that agree, to the two digits that are shown, say nothing new.
  return { expected, range: /[–<]/.test(range) ? range : "" };
}

/** Framework, device, rank and steps of a report, each a short phrase. */
export function describeCapture(report: Report): string[] {
  const worker = report.workers[report.reference_worker];
  const device = worker?.device;
  const parts = [frameworkName(report.framework)];
  parts.push(device ? (device.used > 1 ? `${device.used} × ${device.name}` : device.name) : "CPU only");
  if (worker && (report.workers.length > 1 || (report.world_size ?? 1) > 1)) {
    const count = report.world_size ?? report.workers.length;
    const which = worker.rank === null ? worker.host : `rank ${worker.rank}`;
    parts.push(`${which} of ${formatCount(count)}`);
  }
  parts.push(describeSteps(report));
  return parts;
}

export function describeSteps({ steps }: Pick<Report, "steps">): string {
  if (steps.used === 0) return "no steps found: the whole trace as one";
  const used = formatPlural(steps.used, "step");
  return `${used} ${steps.is_inferred ? "inferred from" : "from"} ${steps.source}`;
}

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
  measured: "The time was seen to be lost in this trace.",
  simulated: "The step was timed again with the change applied to its events.",
  modeled: "A formula over the recorded work, such as a roofline, gives the time.",
  heuristic: "A rule of thumb gives the time: take it as a direction, not as a number.",
};

/** A reason that stands by itself. */
export const asSentence = (reason: string): string =>
  `${reason.charAt(0).toUpperCase()}${reason.slice(1)}${/[.!?]$/.test(reason) ? "" : "."}`;

/** `device-events` as words. */
export function asWords(name: string): string {
  const words = name.replace(/[-_]/g, " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** What causes are called: the report names those that its reference worker has. */
export function causeNames(report: Report): (cause: string) => string {
  const labels = new Map(report.overview.breakdown.map(({ cause, label }) => [cause, label]));
  return (cause) => labels.get(cause) ?? asWords(cause);
}
