// Formats quantities by the rules of tb_perfadvisor/units.py. Nothing else formats numbers.

export const UNKNOWN = "unknown";

const DURATIONS: [number, string][] = [
  [1e9, "s"],
  [1e6, "ms"],
  [1e3, "µs"],
];
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const THOUSANDS = ["", "k", "M", "G", "T", "P"];

type Quantity = number | null | undefined;

const isKnown = (value: Quantity): value is number =>
  value !== null && value !== undefined && Number.isFinite(value);

/** Rounds like Python: exact halves go to the even neighbor, where `toFixed` rounds away from zero. */
function fixed(value: number, digits: number): string {
  const scaled = value * 10 ** digits;
  // With at most three binary places the product above is exact, so a tie is real.
  if (Number.isInteger(value * 8) && Math.abs(scaled % 1) === 0.5) {
    return ((2 * Math.round(scaled / 2)) / 10 ** digits).toFixed(digits);
  }
  return value.toFixed(digits);
}

function threeDigits(value: number): string {
  const magnitude = Math.abs(value);
  if (magnitude >= 99.95) return fixed(value, 0);
  return fixed(value, magnitude >= 9.995 ? 1 : 2);
}

/** `1.23 ms`. */
export function formatDuration(durationNs: Quantity): string {
  if (!isKnown(durationNs)) return UNKNOWN;
  for (const [sizeNs, unit] of DURATIONS) {
    // 999.5 of a unit would print as 1000, so use the next larger unit from there on.
    if (Math.abs(durationNs) >= sizeNs * 0.9995) {
      return `${threeDigits(durationNs / sizeNs)} ${unit}`;
    }
  }
  return `${fixed(durationNs, 0)} ns`;
}

const ELAPSED: [number, string][] = [
  [86_400e9, "days"],
  [3_600e9, "hours"],
  [60e9, "minutes"],
];

/** The length of a run: `8.00 minutes`, `2.50 hours`. */
export function formatElapsed(elapsedNs: number): string {
  for (const [sizeNs, unit] of ELAPSED) {
    if (elapsedNs >= 2 * sizeNs) return `${threeDigits(elapsedNs / sizeNs)} ${unit}`;
  }
  return formatDuration(elapsedNs);
}

/** `12.3 %`. */
export function formatShare(share: Quantity): string {
  if (!isKnown(share)) return UNKNOWN;
  const percent = share * 100;
  if (percent !== 0 && Math.abs(percent) < 0.1) return percent > 0 ? "< 0.1 %" : "> -0.1 %";
  return `${fixed(percent, 1)} %`;
}

/** `1.50 GiB`. */
export function formatBytes(sizeBytes: Quantity): string {
  if (!isKnown(sizeBytes)) return UNKNOWN;
  let value = sizeBytes;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < BYTES.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${fixed(value, 0)} B` : `${threeDigits(value)} ${BYTES[unit]}`;
}

/** `6,120`; fractions keep three digits. */
export function formatCount(count: Quantity): string {
  if (!isKnown(count)) return UNKNOWN;
  return Number.isInteger(count) ? count.toLocaleString("en-US") : threeDigits(count);
}

/** `312 TFLOP/s`: decimal prefixes. */
function formatRate(rate: number, unit: string): string {
  let value = rate;
  let prefix = 0;
  while (Math.abs(value) >= 999.5 && prefix < THOUSANDS.length - 1) {
    value /= 1000;
    prefix += 1;
  }
  return `${threeDigits(value)} ${THOUSANDS[prefix]}${unit}`;
}

export type CellValue = string | number | boolean | null;

/** A table cell, by its column's unit. */
export function formatCell(cell: CellValue, unit: string): string {
  if (cell === null) return "–";
  if (typeof cell === "boolean") return cell ? "yes" : "no";
  if (typeof cell === "string") return cell;
  switch (unit) {
    case "ns":
      return formatDuration(cell).replace("-", "−");
    case "bytes":
      return formatBytes(cell);
    case "share":
      return formatShare(cell);
    case "bytes/s":
      return formatRate(cell, "B/s");
    case "flop/s":
      return formatRate(cell, "FLOP/s");
    case "samples/s":
    case "tokens/s":
      return `${formatCount(cell >= 100 ? Math.round(cell) : cell)}/s`;
    default:
      return formatCount(cell);
  }
}

/** `28.0–54.0 ms`: rounded like single durations, so that nothing looks smaller than its low end. */
export function formatDurationRange(lowNs: number, highNs: number): string {
  const [low, high] = [formatDuration(lowNs), formatDuration(highNs)];
  if (low === high) return high;
  const [lowUnit, highUnit] = [low, high].map((text) => text.slice(text.indexOf(" ")));
  if (lowNs === 0) return `0–${high}`;
  if (lowNs < 0) return `${low.replace("-", "−").replace(lowUnit === highUnit ? (lowUnit ?? "") : "", "")} to ${high}`;
  return lowUnit === highUnit ? `${low.slice(0, -(lowUnit?.length ?? 0))}–${high}` : `${low} – ${high}`;
}

/** An axis label, without trailing zeros: `20 ms`, not `20.0 ms`. */
export function formatTick(value: number, unit: string): string {
  if (value === 0) return "0";
  return formatCell(value, unit).replace(/(\.\d*?)0+(?= |$)/, "$1").replace(/\.(?= |$)/, "");
}

/** The labels of an axis from one value to another: as many digits as tell its ticks apart. */
export function tickLabels(from: number, to: number, count: number, unit: string): (value: number) => string {
  const step = (to - from) / Math.max(count, 1) / 2; // round numbers may be closer than asked for
  const most = Math.max(Math.abs(from), Math.abs(to));
  // Three digits tell values apart that differ by more than a hundredth of them.
  if (unit !== "ns" || step >= most / 100) return (value) => formatTick(value, unit);
  const [size, name] = DURATIONS.find(([ns]) => most >= ns) ?? [1, "ns"];
  const digits = Math.min(6, Math.max(0, Math.ceil(-Math.log10(step / size))));
  return (value) => `${fixed(value / size, digits).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "")} ${name}`;
}

/** A difference: `+3.00 ms`. */
export const formatChange = (ns: number): string =>
  `${ns > 0 ? "+" : ns < 0 ? "−" : ""}${formatDuration(Math.abs(ns))}`;

/** `3 steps`, `1 step`. */
export function formatPlural(count: number, noun: string, plural = `${noun}s`): string {
  return `${formatCount(count)} ${count === 1 ? noun : plural}`;
}
