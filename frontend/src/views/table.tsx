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
      {short.more}
      <Truncated count={truncated} />
    </div>
  );
}

function CellOf({ value, unit }: { value: TableEvidence["rows"][number][number]; unit: string }): JSX.Element {
  return typeof value === "string" ? <Name of={value} /> : <>{formatCell(value, unit)}</>;
}

/** Rows that are shown at once; a long list waits behind a button. */
const SHORT = 8;

export function useShort<Row>(rows: Row[]): { rows: Row[]; more: JSX.Element | null } {
  const [isWhole, setWhole] = useState(false);
  // One or two more rows take no more room than the button.
  if (isWhole || rows.length <= SHORT + 2) return { rows, more: null };
  const more = (
    <button type="button" class="show-all" onClick={() => setWhole(true)}>
      Show all {rows.length}
    </button>
  );
  return { rows: rows.slice(0, SHORT), more };
}

export function Truncated({ count }: { count: number }): JSX.Element | null {
  return count > 0 ? <p class="truncated">and {formatCount(count)} more</p> : null;
}
