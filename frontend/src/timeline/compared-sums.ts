// The sums of a range beside those of the same range of another step or run.
import type { RangeSums, SumRow } from "../state/answers";
import { causeName } from "../text";

export const PARTS = ["causes", "operators", "kernels", "streams", "lines"] as const;
export type Part = (typeof PARTS)[number];

/** A row of the table; of the other range, null without one. */
export interface ComparedSum {
  id: string;
  name: string;
  count: number | null;
  ownNs: number;
  deviceNs: number;
  otherNs: number | null;
  /** The other range's time less this one's. */
  changeNs: number | null;
}

/** The time that a row is about: of the device if there is one. */
export const timeOf = (sums: RangeSums, { ownNs, deviceNs }: Pick<ComparedSum, "ownNs" | "deviceNs">): number =>
  sums.has_device ? deviceNs : ownNs;

/** The rows of one part. Causes fill the time, whatever has a device. */
export function rowsOf(sums: RangeSums, part: Part): SumRow[] {
  if (part !== "causes") return sums[part].rows;
  return sums.causes.map(({ cause, total_ns: ns }) => ({ name: cause, count: 0, own_ns: ns, device_ns: ns }));
}

/** All names of either range, with the time in both; those of the other alone come last. */
export function comparedRows(sums: RangeSums, other: RangeSums | null, part: Part): ComparedSum[] {
  const rows = rowsOf(sums, part);
  const otherRows = new Map((other ? rowsOf(other, part) : []).map((row) => [row.name, row]));
  const nsOf = (row: SumRow, of: RangeSums): number => timeOf(of, { ownNs: row.own_ns, deviceNs: row.device_ns });
  const merged = (row: SumRow, beside: SumRow | undefined): ComparedSum => {
    const otherNs = other && (beside ? nsOf(beside, other) : 0);
    return {
      id: row.name,
      name: part === "causes" ? causeName(row.name) : row.name,
      count: part === "causes" ? null : row.count,
      ownNs: row.own_ns,
      deviceNs: row.device_ns,
      otherNs,
      changeNs: otherNs === null ? null : otherNs - nsOf(row, sums),
    };
  };
  const found = rows.map((row) => merged(row, otherRows.get(row.name)));
  const known = new Set(rows.map(({ name }) => name));
  const missing = [...otherRows.values()].filter(({ name }) => !known.has(name));
  return [...found, ...missing.map((row) => merged({ name: row.name, count: 0, own_ns: 0, device_ns: 0 }, row))];
}

/** What the range is compared with, in the address: `step-7`, or `run-` and the id of a capture. */
export type Beside = { step: number } | { run: string } | null;

export function parseBeside(text: string): Beside {
  const [, kind, value = ""] = /^(step|run)-(.+)$/.exec(text) ?? [];
  if (kind === "run") return { run: value };
  return kind === "step" && /^\d+$/.test(value) ? { step: Number(value) } : null;
}
