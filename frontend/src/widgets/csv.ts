// Tables as comma-separated values, for spreadsheets.
import type { CellValue } from "../format";

interface CsvColumn<Row> {
  label: string;
  unit: string | null;
  value(row: Row): CellValue;
}

/** Units that a number needs to be understood; counts and text have none. */
const named = (unit: string | null): boolean => unit !== null && unit !== "" && unit !== "count";

/** A header with units, then one line per row with unrounded numbers. */
export function toCsv<Row>(columns: CsvColumn<Row>[], rows: Row[]): string {
  const header = columns.map(({ label, unit }) => (named(unit) ? `${label} (${unit})` : label));
  const lines = rows.map((row) => columns.map(({ value }) => value(row)));
  return [header, ...lines].map((line) => `${line.map(quote).join(",")}\r\n`).join("");
}

function quote(value: CellValue): string {
  if (value === null) return "";
  if (typeof value !== "string") return String(value);
  // Names come from the trace: a spreadsheet would run one that looks like a formula.
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
