// The heading of a page, or of one of its parts: what it shows in one sentence, and facts about it.
import type { ComponentChildren, JSX } from "preact";

interface Props {
  title: ComponentChildren;
  /** Those that are empty are left out. */
  facts?: ComponentChildren[];
  /** Whether something else on the page is its title. */
  isPart?: boolean;
  children?: ComponentChildren;
}

export function Head({ title, facts = [], isPart = false, children }: Props): JSX.Element {
  const Title = isPart ? "h2" : "h1";
  const shown = facts.filter((fact) => fact !== false && fact !== null && fact !== undefined && fact !== "");
  return (
    <header class="headline">
      <Title>{title}</Title>
      {shown.length > 0 && (
        <p class="subline">
          {shown.map((fact, place) => (
            <span key={place}>{fact}</span>
          ))}
        </p>
      )}
      {children}
    </header>
  );
}
