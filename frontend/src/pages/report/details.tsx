// Parts of the program, and ranks, each in a fold.
import type { JSX } from "preact";
import { formatPlural } from "../../format";
import type { Report } from "../../report";
import { Fold } from "../../widgets/fold";
import { PlainTable } from "../../widgets/plain-table";
import { Prose } from "../../widgets/prose";
import { stepsLeftOut } from "./trust";

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
  const { workers, workload } = report;
  const leftOut = stepsLeftOut(report);
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
      {leftOut && (
        <p class="section-lead muted">
          <Prose text={leftOut} />
        </p>
      )}
      <div class="card folds">
        {parts.length > 0 && (
          <Fold name="program" title="What this program is">
            <PlainTable columns={PROGRAM_COLUMNS} rows={parts} truncated={0} caption="Parts of the program" />
          </Fold>
        )}
        <Fold name="workers" title={workers.length === 1 ? "Device and file" : `${formatPlural(workers.length, "rank")} and their files`}>
          <PlainTable columns={RANK_COLUMNS} rows={rows} truncated={0} caption="Ranks" />
        </Fold>
      </div>
    </section>
  );
}
