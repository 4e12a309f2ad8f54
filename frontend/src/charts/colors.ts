// Colors of causes and events. The values come from Python, in causes.ts;
// `test/charts/palette.test.ts` checks that they can be told apart, also by color-blind eyes, and that
// text on them can be read.
import { CAUSES } from "../causes";

const rules = (theme: "light" | "dark"): string =>
  Object.entries(CAUSES).map(([cause, colors]) => `--cause-${cause}: ${colors[theme]};`).join("");

/** The colors as custom properties of both themes. */
export const CAUSE_STYLES = `:root{${rules("light")}}:root[data-theme="dark"]{${rules("dark")}}`;

export const causeColor = (cause: string): string =>
  `var(--cause-${cause in CAUSES ? cause : "unexplained"})`;

/** The contrast of a color with white. WCAG 2.2, "relative luminance" and "contrast ratio". */
function contrastWithWhite(hex: string): number {
  const [red = 0, green = 0, blue = 0] = [1, 3, 5].map((at) => {
    const value = Number.parseInt(hex.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 1.05 / (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05);
}

/** Causes whose color in light mode is too pale for white text. */
export const PALE: ReadonlySet<string> = new Set(
  Object.keys(CAUSES).filter((cause) => contrastWithWhite(CAUSES[cause]?.light ?? "#ffffff") < 4.5),
);

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
  wait: "synchronization",
  device_sync: "synchronization",
  allocate: "allocating",
  compile: "compiling",
  python: "python",
  operator: "framework",
};

/** The cause whose color events of a kind have. */
export const causeOfKind = (kind: string): string => KINDS[kind] ?? "unexplained";

export const kindColor = (kind: string): string => causeColor(causeOfKind(kind));
