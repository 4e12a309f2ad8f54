// A row of tabs with arrow key navigation.
import type { ComponentChildren, JSX } from "preact";
import { useId, useRef } from "preact/hooks";
import { slug, useChoice } from "../state/linked";

interface Props {
  label: string;
  tabs: { name: string; content: ComponentChildren }[];
  initial?: number;
}

export function Tabs({ label, tabs, initial = 0 }: Props): JSX.Element {
  const names = tabs.map(({ name }) => slug(name));
  const [chosen, choose] = useChoice(slug(label), names, names[Math.max(initial, 0)] ?? "");
  const active = names.indexOf(chosen);
  const setActive = (index: number): void => choose(names[index] ?? "");
  const id = useId();
  const list = useRef<HTMLDivElement>(null);
  const move = (event: KeyboardEvent): void => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const next = (active + step + tabs.length) % tabs.length;
    setActive(next);
    list.current?.querySelectorAll("button")[next]?.focus();
  };
  return (
    <div class="tabs">
      <div ref={list} role="tablist" aria-label={label} onKeyDown={move}>
        {tabs.map(({ name }, index) => (
          <button
            key={name}
            type="button"
            role="tab"
            id={`${id}-tab-${index}`}
            aria-selected={index === active}
            aria-controls={`${id}-panel`}
            tabIndex={index === active ? 0 : -1}
            onClick={() => setActive(index)}
          >
            {name}
          </button>
        ))}
      </div>
      <div role="tabpanel" id={`${id}-panel`} aria-labelledby={`${id}-tab-${active}`}>
        {tabs[active]?.content}
      </div>
    </div>
  );
}
