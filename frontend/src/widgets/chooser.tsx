// A field that chooses one of many by typing a part of its name.
import type { JSX } from "preact";
import { useEffect, useId, useMemo, useRef, useState } from "preact/hooks";
import { formatCount } from "../format";
import { matchesQuery } from "../text";

export interface ChooserOption {
  id: string;
  label: string;
}

interface Props {
  label: string;
  options: readonly ChooserOption[];
  chosen: string | undefined;
  placeholder: string;
  choose(id: string): void;
}

/** More are a list to search, not to read. */
const MOST_SHOWN = 60;

export function Chooser({ label, options, chosen, placeholder, choose }: Props): JSX.Element {
  const [query, setQuery] = useState<string | null>(null); // null while the list is closed
  const [active, setActive] = useState(0);
  const id = useId();
  const list = useRef<HTMLUListElement>(null);
  const isOpen = query !== null;
  const matching = useMemo(
    () => (query === null ? [] : options.filter((option) => matchesQuery(option.label, query))),
    [options, query],
  );
  const shown = matching.slice(0, MOST_SHOWN);
  const current = options.find((option) => option.id === chosen);
  useEffect(() => {
    list.current?.children[active]?.scrollIntoView?.({ block: "nearest" });
  }, [active, isOpen]);
  const open = (text: string): void => {
    setQuery(text);
    setActive(text === "" ? Math.max(0, options.slice(0, MOST_SHOWN).findIndex((option) => option.id === chosen)) : 0);
  };
  const pick = (option: ChooserOption | undefined): void => {
    if (option === undefined) return;
    setQuery(null);
    if (option.id !== chosen) choose(option.id);
  };
  const onKey = (event: KeyboardEvent): void => {
    const keys: Record<string, () => void> = {
      ArrowDown: () => (isOpen ? setActive(Math.min(active + 1, shown.length - 1)) : open("")),
      ArrowUp: () => (isOpen ? setActive(Math.max(active - 1, 0)) : open("")),
      Enter: () => (isOpen ? pick(shown[active]) : open("")),
      Escape: () => setQuery(null),
    };
    const act = keys[event.key];
    if (!act || (event.key === "Escape" && !isOpen)) return;
    event.preventDefault();
    act();
  };
  return (
    <div class="chooser">
      <input
        type="text"
        role="combobox"
        aria-label={label}
        aria-expanded={isOpen}
        aria-controls={`${id}-list`}
        aria-autocomplete="list"
        aria-activedescendant={isOpen && shown.length > 0 ? `${id}-${active}` : undefined}
        autocomplete="off"
        spellcheck={false}
        placeholder={isOpen ? (current?.label ?? placeholder) : placeholder}
        value={query ?? current?.label ?? ""}
        title={current?.label}
        onClick={() => !isOpen && open("")}
        onInput={({ currentTarget }) => open(currentTarget.value)}
        onKeyDown={onKey}
        onBlur={() => setQuery(null)}
      />
      {isOpen && (
        // A press must not take the focus from the field, which would close the list.
        <div class="chooser-list" onMouseDown={(event) => event.preventDefault()}>
          <ul ref={list} role="listbox" id={`${id}-list`} aria-label={label}>
            {shown.map((option, place) => (
              <li
                key={option.id}
                id={`${id}-${place}`}
                role="option"
                aria-selected={option.id === chosen}
                class={place === active ? "active" : ""}
                onClick={() => pick(option)}
              >
                {option.label}
              </li>
            ))}
          </ul>
          {shown.length === 0 && <p class="muted">Nothing has this name.</p>}
          {matching.length > shown.length && (
            <p class="muted">{formatCount(matching.length - shown.length)} more: type a part of the name.</p>
          )}
        </div>
      )}
    </div>
  );
}
