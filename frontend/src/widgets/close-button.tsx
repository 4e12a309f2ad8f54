// Closes a panel.
import type { JSX } from "preact";
import { CloseIcon } from "./icons";

export function CloseButton({ label, onClick }: { label: string; onClick(): void }): JSX.Element {
  return (
    <button type="button" class="icon-button" aria-label={label} title={label} onClick={onClick}>
      <CloseIcon />
    </button>
  );
}
