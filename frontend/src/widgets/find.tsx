// A field to search a list with, and how many of its rows match.
import type { JSX } from "preact";
import { formatCount } from "../format";

interface Props {
  label: string;
  query: string;
  setQuery(query: string): void;
}

export const FindField = ({ label, query, setQuery }: Props): JSX.Element => (
  <input
    type="search"
    aria-label={label}
    placeholder={label}
    value={query}
    onInput={({ currentTarget }) => setQuery(currentTarget.value)}
  />
);

export const Find = ({ found, of, ...field }: Props & { found: number; of: number }): JSX.Element => (
  <>
    <FindField {...field} />
    <span class="muted" role="status">
      {field.query ? `${formatCount(found)} of ${formatCount(of)}` : formatCount(of)}
    </span>
  </>
);
