// A long table of values with units: sorted by any column, filtered by words.
import type { ComponentChildren, JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { formatCell, formatCount } from "../format";
import { Name } from "./name";

export type Cell = string | number | boolean | null;

export interface Column<Row> {
  key: string;
  label: string;
  /** Of numbers, as `formatCell` takes it; null for text. */
  unit: string | null;
  value(row: Row): Cell;
  /** In place of the formatted value. */
  render?(row: Row): ComponentChildren;
}

interface Props<Row> {
  caption: string;
  columns: Column<Row>[];
  rows: Row[];
  /** How it is sorted at first; without it in the order given. */
  sort?: { key: string; isDescending: boolean };
  /** What the filter is called; short tables have none. */
  filterLabel?: string;
  /** How many rows the answer left out. */
  truncated?: number;
}

/** Rows drawn at once: a page of them scrolls well, and sorting and filtering see all. */
const PAGE = 50;
const FILTERED_FROM = 8;

/** Names of kernels run over pages: two lines of them, the rest on hover and in the filter. */
export const LongName = ({ name }: { name: string }): JSX.Element => (
  <span class="long-name" title={name}>
    <Name of={name} />
  </span>
);

export function compareCells(a: Cell, b: Cell): number {
  if (typeof a === "string" && typeof b === "string") return a.localeCompare(b, "en");
  return Number(a) - Number(b);
}

/** Sorted rows; those without a value come last either way, equals keep their order. */
export function sortRows<Row>(rows: Row[], value: (row: Row) => Cell, isDescending: boolean): Row[] {
  const [known, unknown]: [Row[], Row[]] = [[], []];
  for (const row of rows) (value(row) === null ? unknown : known).push(row);
  const sign = isDescending ? -1 : 1;
  return [...known.sort((a, b) => sign * compareCells(value(a), value(b))), ...unknown];
}

/** The rows whose texts hold every word. */
export function filterRows<Row>(rows: Row[], columns: Column<Row>[], query: string): Row[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return rows;
  return rows.filter((row) => {
    const text = columns.map(({ value, unit }) => formatCell(value(row), unit ?? "")).join("\n").toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

function CellOf({ value, unit }: { value: Cell; unit: string | null }): JSX.Element {
  return typeof value === "string" ? <Name of={value} /> : <>{formatCell(value, unit ?? "")}</>;
}

export function DataTable<Row>(props: Props<Row>): JSX.Element {
  const { caption, columns, rows, filterLabel, truncated = 0 } = props;
  const [sort, setSort] = useState(props.sort ?? null);
  const [query, setQuery] = useState("");
  const [pages, setPages] = useState(1);
  const shown = useMemo(() => {
    const found = filterRows(rows, columns, query);
    const column = columns.find(({ key }) => key === sort?.key);
    return column && sort ? sortRows(found, column.value, sort.isDescending) : found;
  }, [rows, columns, query, sort]);
  const sortBy = (column: Column<Row>): void => {
    const isAgain = sort?.key === column.key;
    // Numbers matter from the largest on, words from A.
    setSort({ key: column.key, isDescending: isAgain ? !sort.isDescending : column.unit !== null });
  };
  const isLong = rows.length > FILTERED_FROM;
  return (
    <div class="data-table">
      {filterLabel && isLong && (
        <div class="table-tools">
          <input
            type="search"
            aria-label={filterLabel}
            placeholder={filterLabel}
            value={query}
            onInput={({ currentTarget }) => (setQuery(currentTarget.value), setPages(1))}
          />
          <span class="muted" role="status">
            {query ? `${formatCount(shown.length)} of ${formatCount(rows.length)}` : formatCount(rows.length)}
          </span>
        </div>
      )}
      <div class="table-scroll" role="group" aria-label={caption} tabIndex={0}>
        <table>
          <thead>
            <tr>
              {columns.map((column) => (
                <th
                  key={column.key}
                  scope="col"
                  class={column.unit === null ? "text" : "number"}
                  aria-sort={sort?.key !== column.key ? undefined : sort.isDescending ? "descending" : "ascending"}
                >
                  <button type="button" class="sort" onClick={() => sortBy(column)}>
                    {column.label}
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.slice(0, pages * PAGE).map((row, index) => (
              <tr key={index}>
                {columns.map(({ key, unit, value, render }) => (
                  <td key={key} class={unit === null ? "text" : "number"}>
                    {render ? render(row) : <CellOf value={value(row)} unit={unit} />}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
        {shown.length === 0 && <p class="truncated">Nothing has these words.</p>}
        {shown.length > pages * PAGE && (
          <button type="button" class="show-all" onClick={() => setPages(pages + 4)}>
            Show more: {formatCount(shown.length - pages * PAGE)} are hidden
          </button>
        )}
        {truncated > 0 && <p class="truncated">and {formatCount(truncated)} smaller ones</p>}
      </div>
    </div>
  );
}
