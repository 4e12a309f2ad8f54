// State of a page that its address carries: what is chosen, sorted, found, zoomed and open. A pasted
// link, a reload and Back show it again.
import { computed } from "@preact/signals";
import { type ComponentChildren, type JSX, createContext } from "preact";
import { useContext, useMemo } from "preact/hooks";
import { link, writeState } from "./link";

/** What the keys of the state of a part of the page begin with, such as the id of a finding. */
const Scope = createContext("");

/** Joins parts of a key, leaving out empty ones. */
const keyOf = (...parts: string[]): string => parts.filter(Boolean).join(".");

/** A part of a key from words in the tab: `All kernels` is `all-kernels`. */
export const slug = (words: string): string =>
  words
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-+|-+$/g, "");

/** A part of the page whose state is below a name. */
export function Below({ name, children }: { name: string; children: ComponentChildren }): JSX.Element {
  return <Scope.Provider value={keyOf(useContext(Scope), name)}>{children}</Scope.Provider>;
}

/** A value in the address of the page, below the scope around it; `""` if it is not there. */
export function useLinked(name: string): [value: string, set: (value: string) => void] {
  const key = keyOf(useContext(Scope), name);
  const value = useMemo(() => computed(() => link.value[key] ?? ""), [key]);
  return [value.value, (next) => writeState({ [key]: next })];
}

/** Whether something is on; only what differs from the default is in the address. */
export function useFlag(name: string, isOnByDefault = false): [isOn: boolean, set: (isOn: boolean) => void] {
  const [value, setValue] = useLinked(name);
  return [value === "" ? isOnByDefault : value === "1", (isOn) => setValue(isOn === isOnByDefault ? "" : isOn ? "1" : "0")];
}

/** Flags of many things that are not components of their own, such as the groups of a table. */
export function useFlags(
  name: string,
): [isOn: (of: string, byDefault: boolean) => boolean, set: (of: string, isOn: boolean, byDefault: boolean) => void] {
  const scope = useContext(Scope);
  const keyFor = (of: string): string => keyOf(scope, name, nameInLink(of));
  return [
    (of, byDefault) => (link.value[keyFor(of)] ?? (byDefault ? "1" : "0")) === "1",
    (of, isOn, byDefault) => writeState({ [keyFor(of)]: isOn === byDefault ? "" : isOn ? "1" : "0" }),
  ];
}

/** One of a few words. */
export function useChoice<Name extends string>(
  name: string,
  options: readonly Name[],
  initial: Name,
): [chosen: Name, choose: (name: Name) => void] {
  const [value, setValue] = useLinked(name);
  return [options.find((option) => option === value) ?? initial, (next) => setValue(next === initial ? "" : next)];
}

/** A whole number. */
export function useNumber(name: string, initial: number): [value: number, set: (value: number) => void] {
  const [text, setText] = useLinked(name);
  const value = /^\d+$/.test(text) ? Number(text) : initial;
  return [value, (next) => setText(next === initial ? "" : String(next))];
}

/** Names this long and plain are readable in an address. */
const PLAIN_NAME = /^[\w:.-]{1,40}$/;

/** A short name for a long text: FNV-1a, of which 32 bits are plenty for the rows of a table. */
function fingerprint(text: string): string {
  let hash = 0x811c9dc5;
  for (let place = 0; place < text.length; place += 1) {
    hash = Math.imul(hash ^ text.charCodeAt(place), 0x01000193) >>> 0;
  }
  return hash.toString(36);
}

/** The name of something in addresses: its own if that is short and plain. */
export const nameInLink = (text: string): string => (PLAIN_NAME.test(text) ? text : fingerprint(text));

/** The name of each row in addresses, which does not change with the order of the rows. */
export function rowNames<Row>(rows: readonly Row[], nameOf: (row: Row) => string): string[] {
  const counts = new Map<string, number>();
  return rows.map((row) => {
    const name = nameInLink(nameOf(row));
    const count = (counts.get(name) ?? 0) + 1;
    counts.set(name, count);
    return count === 1 ? name : `${name}~${count}`;
  });
}

/** The row of a list that is chosen, if one is. */
export function useChosenRow<Row>(
  name: string,
  rows: readonly Row[],
  nameOf: (row: Row) => string,
): [chosen: Row | undefined, choose: (row: Row | undefined) => void] {
  const [value, setValue] = useLinked(name);
  const names = useMemo(() => rowNames(rows, nameOf), [rows]);
  const choose = (row: Row | undefined): void => setValue(row === undefined ? "" : (names[rows.indexOf(row)] ?? ""));
  return [value === "" ? undefined : rows[names.indexOf(value)], choose];
}
