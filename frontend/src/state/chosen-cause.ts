// The cause that the user chose in the breakdown: the findings about it are shown.
import { signal } from "@preact/signals";

export const chosenCause = signal<string | null>(null);
