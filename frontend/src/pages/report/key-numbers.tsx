// The key numbers with their definitions. An unknown number is "unknown", never 0.
import type { JSX } from "preact";
import { formatBytes, formatShare } from "../../format";
import type { Report } from "../../report";
import { Definition } from "../../widgets/definition";

interface KeyNumber {
  label: string;
  value: string | null;
  /** Shown if there is no value. */
  absent: "unknown" | "not applicable";
  /** 0–1, for the thin bar. */
  share: number | null;
  note: string;
  definition: string;
}

const hasDevice = ({ workers, reference_worker: at }: Report): boolean => workers[at]?.device != null;

export function readKeyNumbers(report: Report): KeyNumber[] {
  const { overview } = report;
  const isOnDevice = hasDevice(report);
  const ofDevice = isOnDevice ? "unknown" : "not applicable";
  const { operators, precision, memory } = overview;
  const isSingle = (report.world_size ?? report.workers.length) <= 1;
  // A single process without a device does not communicate, so 0 % would mean nothing.
  const isAlone = isSingle && !isOnDevice && !overview.exposed_communication_share;
  const shareOf = (share: number | null): string | null =>
    share === null ? null : formatShare(share);
  const halfShare = precision && (precision["unknown"] ?? 0) < 1 ? (precision["16"] ?? 0) : null;
  const peak = memory?.peak_allocated_bytes ?? memory?.peak_reserved_bytes ?? null;
  const capacity = memory?.capacity_bytes ?? null;
  return [
    {
      label: "Device compute",
      value: shareOf(overview.device_compute_share),
      absent: ofDevice,
      share: overview.device_compute_share,
      note: overview.device_compute_share === null ? "" : "of step time",
      definition:
        "Share of step time in which the device runs at least one compute kernel. Copies and " +
        "communication do not count as compute.",
    },
    {
      label: "Operators on device",
      value: shareOf(operators.device_share_by_time),
      absent: ofDevice,
      share: operators.device_share_by_time,
      note:
        operators.device_share_by_count === null
          ? ""
          : `by time\nby count ${formatShare(operators.device_share_by_count)}`,
      definition:
        "Share of the framework's operators that run on the device, by time and by count. The " +
        "others run on the host, where they can slow down the step.",
    },
    {
      label: "16-bit compute",
      value: shareOf(halfShare),
      absent: ofDevice,
      share: halfShare,
      note: halfShare === null ? "" : notePrecision(precision ?? {}),
      definition:
        "Share of device compute time in kernels that compute with 16-bit numbers (fp16, bf16), " +
        "judged by kernel names and operand types. Kernels that show neither are unknown.",
    },
    {
      label: "Input wait",
      value: shareOf(overview.input_wait_share),
      absent: "unknown",
      share: overview.input_wait_share,
      note: overview.input_wait_share === null ? "" : "of step time",
      definition:
        "Share of step time in which the device is idle while the step's thread waits for the input " +
        "pipeline. Loading in the background is not counted.",
    },
    {
      label: "Exposed communication",
      value: isAlone ? null : shareOf(overview.exposed_communication_share),
      absent: isSingle || !isOnDevice ? "not applicable" : "unknown",
      share: isAlone ? null : overview.exposed_communication_share,
      note: overview.exposed_communication_share === null ? (isSingle ? "one rank" : "") : "of step time",
      definition:
        "Share of step time in which the device communicates without computing, including time spent " +
        "waiting for other ranks. Communication that overlaps compute is not counted.",
    },
    {
      label: "Peak memory",
      value: peak === null ? null : formatBytes(peak),
      absent: ofDevice,
      share: peak === null || !capacity ? null : Math.min(peak / capacity, 1),
      note: peak === null ? (isOnDevice ? "not recorded" : "") : capacity ? `of ${formatBytes(capacity)}` : "",
      definition:
        "The most device memory allocated to tensors at any time in the trace. The framework's " +
        "allocator may reserve more.",
    },
  ];
}

function notePrecision(precision: Record<string, number>): string {
  const parts = [["8", "8-bit"], ["unknown", "unknown"]]
    .filter(([key = ""]) => (precision[key] ?? 0) >= 0.001)
    .map(([key = "", label]) => `${label} ${formatShare(precision[key])}`);
  return parts.length ? `of device compute\n${parts.join(", ")}` : "of device compute";
}

export function KeyNumbers({ report }: { report: Report }): JSX.Element {
  const numbers = readKeyNumbers(report);
  // Tiles that say only "not applicable" would distract from the others.
  const isShown = ({ value, absent }: KeyNumber): boolean => value !== null || absent === "unknown";
  const absent = numbers.filter((number) => !isShown(number));
  return (
    <section class="key-numbers" aria-labelledby="key-numbers">
      <h2 id="key-numbers" class="visually-hidden">
        Key numbers
      </h2>
      <dl class="tiles">
        {numbers.filter(isShown).map((number) => (
          <Tile key={number.label} {...number} />
        ))}
      </dl>
      {absent.length > 0 && (
        <p class="muted tiles-absent">
          Not applicable {hasDevice(report) ? "here" : "to CPU-only programs"}:{" "}
          {absent.map(({ label }) => label.toLowerCase().replaceAll("-", "\u2011")).join(", ")}.
        </p>
      )}
    </section>
  );
}

function Tile({ label, value, absent, share, note, definition }: KeyNumber): JSX.Element {
  return (
    <div class="tile">
      <dt>
        {label} <Definition of={label} text={definition} />
      </dt>
      <dd>
        <span class={value === null ? "tile-absent" : "tile-value"}>{value ?? absent}</span>
        {note && <span class="tile-note">{note}</span>}
        {share !== null && (
          <span class="meter" aria-hidden="true">
            <span style={{ width: `${Math.min(Math.max(share, 0), 1) * 100}%` }} />
          </span>
        )}
      </dd>
    </div>
  );
}
