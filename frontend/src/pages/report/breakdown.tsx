// Where the time of a step goes: a bar and its legend.
import type { JSX } from "preact";
import { useCallback } from "preact/hooks";
import { causeColor } from "../../charts/colors";
import { drawBreakdownBar } from "../../charts/breakdown-bar";
import { PlotFigure } from "../../charts/plot-figure";
import { formatDuration, formatDurationRange, formatShare } from "../../format";
import type { Report } from "../../report";

export function Breakdown({ report }: { report: Report }): JSX.Element {
  const { overview } = report;
  const steps = Math.max(overview.steps, 1);
  const parts = overview.breakdown.filter((part) => part.total_ns > 0);
  const draw = useCallback((width: number) => drawBreakdownBar(parts, steps, width, null), [report]);
  const stepTime = formatDuration(overview.step_time_ns ?? overview.window_ns);
  const measure = overview.step_time_ns === null ? `the ${stepTime} trace` : `a ${stepTime} step`;
  return (
    <section class="card breakdown" aria-labelledby="breakdown">
      <div class="card-head">
        <h2 id="breakdown">Where {measure} goes</h2>
        <Potential report={report} />
      </div>
      <PlotFigure
        class="breakdown-bar"
        label="Step time by cause; the list below has the same numbers."
        draw={draw}
      />
      <ul class="legend">
        {parts.map((part) => (
          <li key={part.cause}>
            <span class="swatch" style={{ background: causeColor(part.cause) }} aria-hidden="true" />
            <span class="legend-label">{part.label}</span>
            <span class="legend-time">{formatDuration(part.total_ns / steps)}</span>
            <span class="legend-share">{formatShare(part.share)}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** The step time with all changes made. */
function Potential({ report }: { report: Report }): JSX.Element | null {
  const { combined_saving: saving, overview } = report;
  const stepNs = overview.step_time_ns ?? overview.window_ns;
  if (!saving || saving.expected_ns <= 0) return null;
  return (
    <p class="potential">
      With all changes: about <strong>{formatDuration(stepNs - saving.expected_ns)}</strong>
      <span class="muted"> (saves {formatDurationRange(saving.low_ns, saving.high_ns)})</span>
    </p>
  );
}
