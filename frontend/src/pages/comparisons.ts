// What a capture is compared with, before the user chooses.
import type { Capture } from "../state/answers";
import type { LinkValues } from "../state/link";
import { pinned } from "../state/marks";
import { compareLink } from "../state/store";

/** The comparisons worth looking at, the best first: with the pinned base, then with the nearest runs. */
export function comparisonsOf(selected: Capture, captures: readonly Capture[]): { id: string; reason: string; to: LinkValues }[] {
  const base = captures.find(({ id }) => id === pinned.value && id !== selected.id);
  return [
    ...(base ? [{ id: base.id, reason: "the pinned base", to: compareLink(base.id, [selected.id]) }] : []),
    ...selected.partners
      .filter(({ id }) => id !== base?.id)
      .map(({ id, base: from, target, reason }) => ({ id, reason, to: compareLink(from, [target]) })),
  ];
}

/** The comparison that the page of comparisons opens with. */
export const comparisonOf = (selected: Capture, captures: readonly Capture[]): LinkValues =>
  comparisonsOf(selected, captures)[0]?.to ?? compareLink(selected.id, []);
