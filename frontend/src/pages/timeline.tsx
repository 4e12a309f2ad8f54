// The timeline of the whole recording: all threads, streams and ranks.
import type { JSX } from "preact";
import { analyzedPlace, findingAt } from "../finding-ids";
import type { Report } from "../report";
import { formatDuration, formatPlural } from "../format";
import { causeColor } from "../charts/colors";
import { isAside } from "../findings/remark";
import { useLinked } from "../state/linked";
import { Head } from "../widgets/head";
import { Timeline } from "../timeline/timeline";

/** Room for what is around the picture. */
const AROUND_PX = 330;
const LEAST_PX = 320;

export function TimelinePage({ report, captureId }: { report: Report; captureId: string }): JSX.Element {
  const [about, setAbout] = useLinked("about");
  const place = /^\d+$/.test(about) ? Number(about) : -1;
  const findings = findingAt(report.findings, place) ? [place] : [];
  const worker = report.workers[report.reference_worker];
  const offered = report.findings.filter((finding) => !isAside(report.findings, finding));
  const parts = report.overview.breakdown.filter(({ total_ns: ns }) => ns > 0);
  return (
    <>
      <Head
        title={`${formatDuration(worker?.duration_ns)} on ${formatPlural(report.workers.length, "rank")}`}
        facts={["Drag to move, drag in the head to sum up a range, Ctrl and wheel to zoom, or the keys W, A, S and D"]}
      />
      <section class="card" aria-label="Timeline">
        {offered.length > 0 && (
          <label class="timeline-about">
            Mark the time of{" "}
            <select value={place < 0 ? "" : about} onChange={({ currentTarget }) => setAbout(currentTarget.value)}>
              <option value="">no finding</option>
              {offered.map((finding, index) => (
                <option key={index} value={analyzedPlace(report.findings, finding)}>
                  {finding.title}
                </option>
              ))}
            </select>
          </label>
        )}
        <ul class="legend-row">
          {parts.map(({ cause, label }) => (
            <li key={cause}>
              <span class="swatch" style={{ background: causeColor(cause) }} aria-hidden="true" /> {label}
            </li>
          ))}
        </ul>
        <Timeline
          captureId={captureId}
          worker={report.reference_worker}
          findings={findings}
          heightPx={Math.max(window.innerHeight - AROUND_PX, LEAST_PX)}
        />
      </section>
    </>
  );
}
