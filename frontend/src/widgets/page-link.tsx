// A link to another place in the tab: a plain click stays here, any other works as on every link.
import type { ComponentChildren, JSX } from "preact";
import { type LinkValues, addressOf } from "../state/link";
import { go } from "../state/store";

interface Props {
  to: LinkValues;
  class?: string;
  title?: string;
  isCurrent?: boolean;
  children: ComponentChildren;
}

const isPlain = ({ button, ctrlKey, metaKey, shiftKey, altKey }: MouseEvent): boolean =>
  button === 0 && !ctrlKey && !metaKey && !shiftKey && !altKey;

export function PageLink({ to, isCurrent = false, children, ...rest }: Props): JSX.Element {
  const follow = (event: MouseEvent): void => {
    if (!isPlain(event)) return;
    event.preventDefault();
    go(to);
  };
  return (
    <a {...rest} href={addressOf(to)} target="_parent" aria-current={isCurrent ? "page" : undefined} onClick={follow}>
      {children}
    </a>
  );
}
