// A short table of values with units.
import type { JSX } from "preact";
import { formatCount } from "../format";
import type { TableColumn, TableEvidence } from "../report";
import { slug, useFlag } from "../state/linked";
import { Cell } from "./cell";
import { ScrollBox } from "./scroll-box";

/** Whether a column shows numbers; false for an empty column. */
export const isNumeric = ({ unit }: TableColumn, rows: TableEvidence["rows"], at: number): boolean =>
  unit !== "" ||
  (rows.some((row) => typeof row[at] === "number") && rows.every((row) => typeof row[at] === "number" || row[at] === null));

type Props = Pick<TableEvidence, "columns" | "rows" | "truncated"> & { caption: string };

export function PlainTable(props: Props): JSX.Element {
  const { truncated, caption } = props;
  // Leave out columns that are empty for all rows.
  const places = [...props.columns.keys()].filter((at) => props.rows.some((row) => (row[at] ?? "") !== ""));
  const columns = places.map((at) => props.columns[at] as TableColumn);
  const rows = props.rows.map((row) => places.map((at) => row[at] ?? null));
  const short = useShortList(`${slug(caption)}.all`, rows);
  const classes = columns.map((column, at) => (isNumeric(column, rows, at) ? "number" : "text"));
  return (
    <ScrollBox role="region" label={caption}>
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
                  <Cell value={row[at] ?? null} unit={unit} />
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      <More of={short} truncated={truncated} />
    </ScrollBox>
  );
}

/** How many rows of a longer list are shown at first. */
const SHORT = 8;

interface ShortList<Row> {
  rows: Row[];
  /** How many rows the button shows. */
  hidden: number;
  showAll(): void;
}

/** Shows the first few rows, until the user asks for all; `name` says of what in the URL. */
export function useShortList<Row>(name: string, rows: Row[]): ShortList<Row> {
  const [isWhole, setWhole] = useFlag(name);
  // One or two more rows take no more space than the button.
  const isShort = !isWhole && rows.length > SHORT + 2;
  const shown = isShort ? rows.slice(0, SHORT) : rows;
  return { rows: shown, hidden: rows.length - shown.length, showAll: () => setWhole(true) };
}

/** The last line of a table: a button for hidden rows, and how many rows the report leaves out. */
export function More<Row>({ of, truncated }: { of: ShortList<Row>; truncated: number }): JSX.Element | null {
  if (of.hidden === 0 && truncated === 0) return null;
  return (
    <p class="truncated">
      {of.hidden > 0 && (
        <button type="button" class="show-all" onClick={of.showAll}>
          Show {formatCount(of.hidden)} more
        </button>
      )}
      {truncated > 0 && <span>{formatCount(truncated)} smaller rows not included</span>}
    </p>
  );
}
