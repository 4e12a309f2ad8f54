// A long table of values with units, sortable by any column and searchable.
import type { ComponentChildren, JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { type CellValue, formatCell, formatCount } from "../format";
import { matchesQuery } from "../text";
import { Cell } from "./cell";

export interface Column<Row> {
  key: string;
  label: string;
  /** The unit of numbers, as in `formatCell`; null for text. */
  unit: string | null;
  value(row: Row): CellValue;
  /** Replaces the formatted value. */
  render?(row: Row): ComponentChildren;
}

interface Props<Row> {
  caption: string;
  columns: Column<Row>[];
  rows: Row[];
  /** The initial order; by default the order of `rows`. */
  sort?: { key: string; isDescending: boolean };
  /** The label of the search field, which short tables do not have. */
  filterLabel?: string;
  /** How many rows the report left out. */
  truncated?: number;
}

/** Rows rendered at once. Sorting and searching cover all rows. */
const PAGE = 50;
/** Shorter tables have no search field. */
const MIN_SEARCHABLE = 8;

function compareCells(a: CellValue, b: CellValue): number {
  if (typeof a === "string" && typeof b === "string") return a.localeCompare(b, "en");
  return Number(a) - Number(b);
}

/** Sorts rows stably; rows without a value are always last. */
export function sortRows<Row>(rows: Row[], value: (row: Row) => CellValue, isDescending: boolean): Row[] {
  const [known, unknown]: [Row[], Row[]] = [[], []];
  for (const row of rows) (value(row) === null ? unknown : known).push(row);
  const sign = isDescending ? -1 : 1;
  return [...known.sort((a, b) => sign * compareCells(value(a), value(b))), ...unknown];
}

/** The rows that contain every word of the query. */
export function filterRows<Row>(rows: Row[], columns: Column<Row>[], query: string): Row[] {
  if (query.trim() === "") return rows;
  return rows.filter((row) =>
    matchesQuery(columns.map(({ value, unit }) => formatCell(value(row), unit ?? "")).join("\n"), query),
  );
}

export function SortableTable<Row>(props: Props<Row>): JSX.Element {
  const { caption, columns, rows, filterLabel, truncated = 0 } = props;
  const [sort, setSort] = useState(props.sort ?? null);
  const [query, setQuery] = useState("");
  const [pages, setPages] = useState(1);
  const shown = useMemo(() => {
    const matching = filterRows(rows, columns, query);
    const column = columns.find(({ key }) => key === sort?.key);
    return column && sort ? sortRows(matching, column.value, sort.isDescending) : matching;
  }, [rows, columns, query, sort]);
  const sortBy = (column: Column<Row>): void => {
    const isAgain = sort?.key === column.key;
    // Start with the largest number, or with A.
    setSort({ key: column.key, isDescending: isAgain ? !sort.isDescending : column.unit !== null });
  };
  const isLong = rows.length > MIN_SEARCHABLE;
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
                    {render ? render(row) : <Cell value={value(row)} unit={unit ?? ""} />}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
        {shown.length === 0 && <p class="truncated">No matching rows.</p>}
        {shown.length > pages * PAGE && (
          <button type="button" class="show-all" onClick={() => setPages(pages + 4)}>
            Show more ({formatCount(shown.length - pages * PAGE)} hidden)
          </button>
        )}
        {truncated > 0 && <p class="truncated">{formatCount(truncated)} smaller rows not included</p>}
      </div>
    </div>
  );
}
