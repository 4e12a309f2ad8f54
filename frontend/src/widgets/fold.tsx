// A section that opens and closes.
import type { ComponentChildren, JSX } from "preact";
import { ChevronIcon } from "./icons";

interface Props {
  title: string;
  icon?: JSX.Element;
  /** Part of the CSS class that colors the icon. */
  tone?: string;
  isOpen?: boolean;
  children: ComponentChildren;
}

export function Fold({ title, icon, tone, isOpen = false, children }: Props): JSX.Element {
  return (
    <details class={`fold${tone ? ` fold-${tone}` : ""}`} open={isOpen}>
      <summary>
        {icon}
        <span>{title}</span>
        <ChevronIcon />
      </summary>
      <div class="fold-body">{children}</div>
    </details>
  );
}
