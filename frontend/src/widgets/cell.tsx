// A value in a table.
import type { JSX } from "preact";
import { type CellValue, formatCell } from "../format";
import { Name } from "./name";

export function Cell({ value, unit }: { value: CellValue; unit: string }): JSX.Element {
  return typeof value === "string" ? <Name of={value} /> : <>{formatCell(value, unit)}</>;
}
