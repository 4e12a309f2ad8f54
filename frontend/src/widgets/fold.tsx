// A section that opens and closes.
import type { ComponentChildren, JSX } from "preact";
import { useFlag } from "../state/linked";
import { ChevronIcon } from "./icons";

interface Props {
  title: string;
  icon?: JSX.Element;
  /** Part of the CSS class that colors the icon. */
  tone?: string;
  /** Its name in the URL. */
  name: string;
  isOpen?: boolean;
  children: ComponentChildren;
}

export function Fold({ name, title, icon, tone, isOpen = false, children }: Props): JSX.Element {
  const [isShown, show] = useFlag(name, isOpen);
  return (
    <details
      class={`fold${tone ? ` fold-${tone}` : ""}`}
      open={isShown}
      onToggle={({ currentTarget }) => show(currentTarget.open)}
    >
      <summary>
        {icon}
        <span>{title}</span>
        <ChevronIcon />
      </summary>
      <div class="fold-body">{children}</div>
    </details>
  );
}
