// Parts of the program, top kernels and ranks, each in a fold.
import type { JSX } from "preact";
import { formatPlural } from "../../format";
import type { Report } from "../../report";
import { Fold } from "../../widgets/fold";
import { PlainTable } from "../../widgets/plain-table";

const kernelColumns = (hasSteps: boolean) => [
  { key: "name", label: "Kernel", unit: "" },
  { key: "family", label: "Family", unit: "" },
  { key: "share", label: "Share of compute", unit: "share" },
  { key: "time", label: hasSteps ? "Per step" : "Time", unit: "ns" },
  { key: "count", label: "Count", unit: "count" },
];

const RANK_COLUMNS = [
  { key: "rank", label: "Rank", unit: "count" },
  { key: "host", label: "Host", unit: "" },
  { key: "device", label: "Device", unit: "" },
  { key: "used", label: "Devices used", unit: "" },
  { key: "events", label: "Events", unit: "count" },
  { key: "duration", label: "Recorded", unit: "ns" },
  { key: "file", label: "File", unit: "" },
];

const PROGRAM_COLUMNS = [
  { key: "part", label: "Part", unit: "" },
  { key: "evidence", label: "Seen in the profile", unit: "" },
];

export function Details({ report }: { report: Report }): JSX.Element {
  const { overview, workers, workload } = report;
  const steps = Math.max(overview.steps, 1);
  const kernels = overview.kernels.map(({ name, family, share, total_ns: totalNs, count }) => [
    name, family, share, totalNs / steps, count,
  ]);
  const rows = workers.map(({ rank, host, device, events, duration_ns: durationNs, file }) => [
    rank, host, device?.name ?? "none", device && device.used !== null ? `${device.used} of ${device.visible}` : null, events,
    durationNs, file,
  ]);
  const parts = workload.evidence.map(({ part, evidence }) => [part, evidence]);
  return (
    <section aria-labelledby="details">
      <div class="section-head">
        <h2 id="details">Details</h2>
      </div>
      <div class="card folds">
        {parts.length > 0 && (
          <Fold name="program" title="What this program is">
            <PlainTable columns={PROGRAM_COLUMNS} rows={parts} truncated={0} caption="Parts of the program" />
          </Fold>
        )}
        {kernels.length > 0 && (
          <Fold name="top-kernels" title="Top kernels">
            <PlainTable columns={kernelColumns(overview.steps > 0)} rows={kernels} truncated={overview.kernels_truncated} caption="Kernels" />
          </Fold>
        )}
        <Fold name="workers" title={workers.length === 1 ? "Device and file" : `${formatPlural(workers.length, "rank")} and their files`}>
          <PlainTable columns={RANK_COLUMNS} rows={rows} truncated={0} caption="Ranks" />
        </Fold>
      </div>
    </section>
  );
}
