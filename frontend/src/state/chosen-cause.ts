// The cause that the user chose in the breakdown: its time and the findings about it are shown.
import { computed } from "@preact/signals";
import { link, writeState } from "./link";

export const chosenCause = computed(() => link.value.cause ?? null);

export const chooseCause = (cause: string | null): void => writeState({ cause: cause ?? "", finding: "" });
