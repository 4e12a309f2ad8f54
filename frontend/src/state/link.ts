// Our values in the URL: the place in the tab, and the state of the page that is shown there.
import { computed, signal } from "@preact/signals";
import { addressWith, readLink, writeLink } from "./host";

/** Values by key. Those that are not in the URL are not here either. */
export type LinkValues = Readonly<Record<string, string>>;

/** The URL's values, and in advance of the URL those that are about to be written to it. */
export const link = signal<LinkValues>({});

/** The keys of a place, and of what the user says about the runs; all others are state of one page. */
const LASTING = new Set(["capture", "view", "finding", "rule", "base", "target", "price", "last_step", "pin"]);

const without = (values: LinkValues, isGone: (key: string) => boolean): LinkValues =>
  Object.fromEntries(Object.keys(values).filter(isGone).map((key) => [key, ""]));

/** What to write to go to another place: its values, and none of the state of this page. */
const elsewhere = (values: LinkValues): LinkValues => ({
  ...without(link.peek(), (key) => !LASTING.has(key)),
  ...values,
});

/** The values that links to other places keep. */
const lasting = computed(() =>
  JSON.stringify(Object.entries(link.value).filter(([key]) => LASTING.has(key))),
);

/** The address of another place in the tab, for links. */
export function addressOf(values: LinkValues): string {
  void lasting.value; // links change with the values that they keep
  return addressWith(elsewhere(values));
}

/** Writes another place to the URL, which Back leaves again. */
export function writePlace(values: LinkValues): void {
  writeLink(elsewhere(values), true);
}

/** Whether a key is below another, as `kernel.zoom` is below `kernel`. */
const isBelow = (key: string, above: string): boolean => key.startsWith(`${above}.`);

/** Changes values in place. A value that is below a changed one is forgotten: it was about the old one. */
export function writeState(values: LinkValues): void {
  const current = link.peek();
  const changed = Object.keys(values).filter((key) => (current[key] ?? "") !== values[key]);
  if (changed.length === 0) return;
  writeLink({ ...without(current, (key) => changed.some((above) => isBelow(key, above))), ...values }, false);
  link.value = readLink();
}

/** Forgets the values below a key. */
export const forgottenBelow = (above: string): LinkValues => without(link.peek(), (key) => isBelow(key, above));
