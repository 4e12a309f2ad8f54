// A button that opens a list of links.
import type { ComponentChildren, JSX } from "preact";
import { useRef } from "preact/hooks";

interface Props {
  label: string;
  name: string;
  children: ComponentChildren;
}

export function Menu({ label, name, children }: Props): JSX.Element {
  const menu = useRef<HTMLDetailsElement>(null);
  const close = (): void => {
    if (menu.current) menu.current.open = false;
  };
  return (
    <details
      class={`menu menu-${name}`}
      ref={menu}
      onKeyDown={(event) => {
        if (event.key === "Escape") close();
      }}
      // A menu that lost the focus is in the way. A click on its own label keeps the focus.
      onFocusOut={({ relatedTarget }) => {
        if (relatedTarget instanceof Node && !menu.current?.contains(relatedTarget)) close();
      }}
    >
      <summary>{label}</summary>
      <ul onClick={close}>{children}</ul>
    </details>
  );
}
