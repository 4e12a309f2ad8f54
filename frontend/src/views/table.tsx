// A table of values with units.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { formatCell, formatCount } from "../format";
import type { TableColumn, TableEvidence } from "../report";
import { Name } from "./name";

const isNumeric = ({ unit }: TableColumn, rows: TableEvidence["rows"], at: number): boolean =>
  unit !== "" || rows.every((row) => typeof row[at] === "number" || row[at] === null);

type Props = Pick<TableEvidence, "columns" | "rows" | "truncated"> & { caption: string };

export function Table({ columns, rows, truncated, caption }: Props): JSX.Element {
  const short = useShort(rows);
  const classes = columns.map((column, at) => (isNumeric(column, rows, at) ? "number" : "text"));
  return (
    <div class="table-scroll" role="region" aria-label={caption} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {columns.map(({ key, label }, at) => (
              <th key={key} scope="col" class={classes[at]}>
                {label}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {short.rows.map((row, index) => (
            <tr key={index}>
              {columns.map(({ key, unit }, at) => (
                <td key={key} class={classes[at]}>
                  <CellOf value={row[at] ?? null} unit={unit} />
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      <More of={short} truncated={truncated} />
    </div>
  );
}

function CellOf({ value, unit }: { value: TableEvidence["rows"][number][number]; unit: string }): JSX.Element {
  return typeof value === "string" ? <Name of={value} /> : <>{formatCell(value, unit)}</>;
}

/** Rows that are shown at once; a long list waits behind a button. */
const SHORT = 8;

interface Short<Row> {
  rows: Row[];
  /** How many wait behind the button. */
  hidden: number;
  showAll(): void;
}

export function useShort<Row>(rows: Row[]): Short<Row> {
  const [isWhole, setWhole] = useState(false);
  // One or two more rows take no more room than the button.
  const isShort = !isWhole && rows.length > SHORT + 2;
  const shown = isShort ? rows.slice(0, SHORT) : rows;
  return { rows: shown, hidden: rows.length - shown.length, showAll: () => setWhole(true) };
}

/** What follows below a table: rows behind a button, and those that the report does not hold. */
export function More<Row>({ of, truncated }: { of: Short<Row>; truncated: number }): JSX.Element | null {
  if (of.hidden === 0 && truncated === 0) return null;
  return (
    <p class="truncated">
      {of.hidden > 0 && (
        <button type="button" class="show-all" onClick={of.showAll}>
          Show {formatCount(of.hidden)} more
        </button>
      )}
      {truncated > 0 && (
        <span>{of.hidden > 0 ? `${formatCount(truncated)} smaller ones are left out` : `and ${formatCount(truncated)} smaller ones, left out here`}</span>
      )}
    </p>
  );
}
