// The findings whose changes the user ticked, in the address of the page.
import { computed } from "@preact/signals";
import { link, writeState } from "./link";

const ids = computed(() => link.value.if ?? "");

/** Ids of findings. */
export const tickedFindings = computed<ReadonlySet<string>>(() => new Set(ids.value.split(",").filter(Boolean)));

export const tickAll = (wanted: Iterable<string>): void => writeState({ if: [...wanted].join(",") });

export function toggleTick(id: string): void {
  const ticked = new Set(tickedFindings.peek());
  if (!ticked.delete(id)) ticked.add(id);
  tickAll(ticked);
}
