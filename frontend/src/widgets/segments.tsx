// A choice of one of a few, as a row of buttons.
import type { ComponentChildren, JSX } from "preact";

interface Props<Name extends string> {
  label: string;
  options: [name: Name, label: ComponentChildren][];
  chosen: Name;
  choose(name: Name): void;
}

export function Segments<Name extends string>({ label, options, chosen, choose }: Props<Name>): JSX.Element {
  return (
    <div class="segments" role="group" aria-label={label}>
      {options.map(([name, text]) => (
        <button key={name} type="button" aria-pressed={name === chosen} onClick={() => choose(name)}>
          {text}
        </button>
      ))}
    </div>
  );
}
