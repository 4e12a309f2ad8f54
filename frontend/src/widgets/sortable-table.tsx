// A long table of values with units, sortable by any column, searchable, and copied as CSV.
import type { ComponentChildren, JSX } from "preact";
import { useMemo } from "preact/hooks";
import { type CellValue, formatCell, formatCount } from "../format";
import { slug, useFlag, useLinked, useNumber } from "../state/linked";
import { matchesQuery } from "../text";
import { Cell } from "./cell";
import { CopyButton } from "./code";
import { toCsv } from "./csv";
import { Find } from "./find";
import { LongName } from "./name";
import { ScrollBox } from "./scroll-box";

export interface Column<Row> {
  key: string;
  label: string;
  /** The unit of numbers, as in `formatCell`; null for text. */
  unit: string | null;
  value(row: Row): CellValue;
  /** What to sort by, if not the value. */
  order?(row: Row): CellValue;
  /** Replaces the formatted value. */
  render?(row: Row): ComponentChildren;
  /** Whether the values are long names, shortened until the user asks for all of them. */
  isLongName?: boolean;
  /** What a click on a long name does. */
  open?(row: Row): void;
}

export interface Sort {
  key: string;
  isDescending: boolean;
}

interface Props<Row> {
  /** Unique on its page, as it also names the table in the URL. */
  caption: string;
  columns: Column<Row>[];
  rows: Row[];
  /** The initial order; by default the order of `rows`. */
  sort?: Sort;
  /** The label of the search field, which short tables do not have. */
  filterLabel?: string;
  /** How many rows the report left out. */
  truncated?: number;
  /** The row to mark. */
  chosen?: Row | undefined;
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

/** The order of a table, in the URL as `-share` or `name`. */
function useSort<Row>(name: string, columns: Column<Row>[], initial: Sort | null): [Sort | null, (sort: Sort) => void] {
  const [text, setText] = useLinked(name);
  const key = text.replace(/^-/, "");
  const isKnown = columns.some((column) => column.key === key);
  const sort = useMemo(
    () => (isKnown ? { key, isDescending: text.startsWith("-") } : initial),
    [isKnown, text, initial?.key, initial?.isDescending],
  );
  const write = (next: Sort): string => `${next.isDescending ? "-" : ""}${next.key}`;
  return [sort, (next) => setText(initial && write(next) === write(initial) ? "" : write(next))];
}

export function SortableTable<Row>(props: Props<Row>): JSX.Element {
  const { caption, columns, rows, filterLabel, truncated = 0, chosen } = props;
  const name = slug(caption);
  const [sort, setSort] = useSort(`${name}.sort`, columns, props.sort ?? null);
  const [query, setQuery] = useLinked(`${name}.find`);
  const [pages, setPages] = useNumber(`${name}.pages`, 1);
  const [isWhole, setWhole] = useFlag(`${name}.names`);
  const shown = useMemo(() => {
    const matching = filterRows(rows, columns, query);
    const column = columns.find(({ key }) => key === sort?.key);
    return column && sort ? sortRows(matching, column.order ?? column.value, sort.isDescending) : matching;
  }, [rows, columns, query, sort]);
  const sortBy = (column: Column<Row>): void => {
    const isAgain = sort?.key === column.key;
    // Start with the largest number, or with A.
    setSort({ key: column.key, isDescending: isAgain ? !sort.isDescending : column.unit !== null });
  };
  const isLong = rows.length > MIN_SEARCHABLE;
  const hasLongNames = columns.some(({ isLongName }) => isLongName);
  return (
    <div class="data-table">
      <div class="table-tools">
        {filterLabel && isLong && (
          <Find
            label={filterLabel}
            query={query}
            setQuery={(text) => (setQuery(text), setPages(1))}
            found={shown.length}
            of={rows.length}
          />
        )}
        <span class="button-row">
          {hasLongNames && (
            <button type="button" aria-pressed={isWhole} onClick={() => setWhole(!isWhole)}>
              Full names
            </button>
          )}
          <CopyButton label="Copy as CSV" text={() => toCsv(columns, shown)} />
        </span>
      </div>
      <ScrollBox role="group" label={caption}>
        <table>
          <thead>
            <tr>
              <SortHeads columns={columns} sort={sort} sortBy={sortBy} />
            </tr>
          </thead>
          <tbody>
            {shown.slice(0, pages * PAGE).map((row, index) => (
              <tr key={index} class={row === chosen ? "chosen" : ""}>
                {columns.map((column) => (
                  <td key={column.key} class={column.unit === null ? "text" : "number"}>
                    {cell(column, row, isWhole, row === chosen)}
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
      </ScrollBox>
    </div>
  );
}

export const SortHeads = <Row,>({ columns, sort, sortBy }: Pick<Props<Row>, "columns"> & {
  sort: Sort | null;
  sortBy(column: Column<Row>): void;
}): JSX.Element => (
  <>
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
  </>
);

function cell<Row>(column: Column<Row>, row: Row, isWhole: boolean, isChosen: boolean): ComponentChildren {
  const { unit, value, render, isLongName, open } = column;
  const content = value(row);
  const shown = render ? (
    render(row)
  ) : isLongName && typeof content === "string" ? (
    <LongName name={content} isWhole={isWhole} />
  ) : (
    <Cell value={content} unit={unit ?? ""} />
  );
  if (!open) return shown;
  return (
    <button type="button" class="event-button" aria-pressed={isChosen} onClick={() => open(row)}>
      {shown}
    </button>
  );
}
