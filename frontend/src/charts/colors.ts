// Colors of causes and events. The values are in style.css; `test/charts/palette.test.ts` checks
// that they can be told apart, also by color-blind eyes, and that text on them can be read.

const CAUSES = new Set([
  "compute-8", "compute-16", "compute-32", "compute-64", "compute-unknown", "host-compute",
  "communication", "copies", "queued", "input", "between-steps", "compiling",
  "allocating", "synchronization", "launching", "framework", "python", "unexplained",
]);

export const causeColor = (cause: string): string =>
  `var(--cause-${CAUSES.has(cause) ? cause : "unexplained"})`;

/** Causes whose color in light mode is too pale for white text. */
export const PALE = new Set([
  "compute-8", "compute-16", "queued", "synchronization", "launching", "framework",
]);

/** The color of text on a cause's color. */
export const onCauseColor = (cause: string): string =>
  PALE.has(cause) ? "var(--on-pale-mark)" : "var(--on-mark)";

/** The color of an event on a timeline, by its kind. */
const KINDS: Record<string, string> = {
  kernel: "compute-16",
  collective: "communication",
  host_collective: "communication",
  copy: "copies",
  memset: "copies",
  input_wait: "input",
  input_work: "input",
  infeed_wait: "input",
  launch: "launching",
  synchronize: "synchronization",
  device_sync: "synchronization",
  allocate: "allocating",
  compile: "compiling",
  python: "python",
  operator: "framework",
};

const causeOfKind = (kind: string): string => KINDS[kind] ?? "unexplained";

export const onKindColor = (kind: string): string => onCauseColor(causeOfKind(kind));

export const kindColor = (kind: string): string => causeColor(causeOfKind(kind));
