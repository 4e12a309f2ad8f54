// Colors of causes and events, by hue: compute blue, communication purple, copies teal, input red,
// host causes ochre, unexplained gray. The values are in style.css.

const CAUSES = new Set([
  "compute-8", "compute-16", "compute-32", "compute-64", "compute-unknown", "host-compute",
  "communication", "waiting", "copies", "queued", "input", "between-steps", "compiling",
  "allocating", "synchronization", "launching", "framework", "python", "unexplained",
]);

export const causeColor = (cause: string): string =>
  `var(--cause-${CAUSES.has(cause) ? cause : "unexplained"})`;

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

/** Colors too pale for light text. */
const PALE = new Set(["launching", "synchronization", "allocating", "framework", "python", "unexplained", "compute-16"]);

export const onKindColor = (kind: string): string =>
  PALE.has(KINDS[kind] ?? "unexplained") ? "var(--on-pale-mark)" : "var(--on-mark)";

export const kindColor = (kind: string): string => `var(--cause-${KINDS[kind] ?? "unexplained"})`;
