// Where the time of a step goes: a bar, its legend, and the events of the cause that is chosen.
import type { JSX } from "preact";
import { useCallback } from "preact/hooks";
import { causeColor } from "../../charts/colors";
import { drawBreakdownBar } from "../../charts/breakdown-bar";
import { PlotFigure } from "../../charts/plot-figure";
import { Timeline } from "../../timeline/timeline";
import { formatDuration, formatDurationRange, formatPlural, formatShare } from "../../format";
import type { BreakdownPart, Report, StepsView } from "../../report";
import { fetchView } from "../../state/api";
import { chooseCause, chosenCause } from "../../state/chosen-cause";
import { Below, useNumber } from "../../state/linked";
import { openIndices } from "../../state/open-findings";
import { pageLink } from "../../state/store";
import { hasTimeline } from "../../timeline/has-timeline";
import { PageLink } from "../../widgets/page-link";
import { Fetched } from "../../widgets/fetched";
import { CloseButton } from "../../widgets/close-button";

interface Props {
  report: Report;
  captureId: string;
}

const choose = (cause: string): void => chooseCause(chosenCause.value === cause ? null : cause);

export function Breakdown({ report, captureId }: Props): JSX.Element {
  const { overview } = report;
  const chosen = chosenCause.value;
  const steps = Math.max(overview.steps, 1);
  const parts = overview.breakdown.filter((part) => part.total_ns > 0);
  const draw = useCallback((width: number) => drawBreakdownBar(parts, steps, width, chosen), [report, chosen]);
  const stepTime = formatDuration(overview.step_time_ns ?? overview.window_ns);
  const measure = overview.step_time_ns === null ? `the ${stepTime} analyzed` : `a ${stepTime} step`;
  const part = parts.find(({ cause }) => cause === chosen);
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
        onPick={(picked) => choose((picked as BreakdownPart).cause)}
      />
      <ul class="legend">
        {parts.map(({ cause, label, total_ns: ns, share }) => (
          <li key={cause}>
            <button type="button" aria-pressed={cause === chosen} title="Show its findings and events" onClick={() => choose(cause)}>
              <span class="swatch" style={{ background: causeColor(cause) }} aria-hidden="true" />
              <span class="legend-label">{label}</span>
              <span class="legend-time">{formatDuration(ns / steps)}</span>
              <span class="legend-share">{formatShare(share)}</span>
            </button>
          </li>
        ))}
      </ul>
      <Costliest report={report} />
      {part ? (
        <Below name="cause">
          <Stretches key={part.cause} part={part} report={report} captureId={captureId} />
        </Below>
      ) : (
        hasTimeline(report) && (
          <Below name="step">
            <div class="drilldown">
              <div class="card-head">
                <h3>{report.steps.used > 0 ? "A typical step" : "The recording"}</h3>
                <PageLink to={pageLink("timeline")}>The whole timeline</PageLink>
              </div>
              <Timeline captureId={captureId} worker={report.reference_worker} findings={openIndices(report)} />
            </div>
          </Below>
        )
      )}
    </section>
  );
}

/** What takes half of the time, by name, and what its work needs of that. */
function Costliest({ report }: { report: Report }): JSX.Element | null {
  const { costliest = [] } = report.overview;
  if (costliest.length === 0) return null;
  return (
    <p class="costliest muted">
      Most of the time:{" "}
      {costliest.map(({ name, place, is_idle: isIdle, share, achieved_share: needed }, at) => (
        <span key={`${name} ${isIdle}`} title={place}>
          {at > 0 && ", "}
          <code>{name}</code> {formatShare(share)}
          {isIdle && " idle"}
          {needed !== null && (needed >= 1 ? " (needs all of it)" : ` (needs ${formatShare(needed)} of it)`)}
          {place && ` at ${place}`}
        </span>
      ))}
    </p>
  );
}

/** The longest stretches of time of a cause, on a timeline. */
function Stretches({ part, report, captureId }: Props & { part: BreakdownPart }): JSX.Element {
  return (
    <div class="drilldown">
      <div class="card-head">
        <h3>{part.label}: its longest stretches</h3>
        <CloseButton label="Close the events" onClick={() => chooseCause(null)} />
      </div>
      <Fetched of={`${captureId} ${part.cause}`} fetch={(signal) => fetchView(captureId, "steps", signal)}>
        {(view) => <StretchesOf view={view} part={part} report={report} captureId={captureId} />}
      </Fetched>
    </div>
  );
}

function StretchesOf({ view, part, report, captureId }: Props & { view: StepsView; part: BreakdownPart }): JSX.Element {
  const stretches = view.longest[view.causes.indexOf(part.cause)] ?? [];
  const longest = stretches.reduce(
    (best, [start, end], index) => (end - start > (stretches[best]?.[1] ?? 0) - (stretches[best]?.[0] ?? 0) ? index : best),
    0,
  );
  const [place, setPlace] = useNumber("stretch", longest);
  const [startNs, endNs] = stretches[place] ?? [0, 0];
  if (stretches.length === 0) return <p class="muted">The recording does not show when.</p>;
  return (
    <>
      <p class="muted">
        {formatDuration(endNs - startNs)}, {place + 1} of {formatPlural(stretches.length, "stretch", "stretches")} in order of
        time. Drag to move, Ctrl and wheel to zoom.
      </p>
      <Below name="stretch">
        <Timeline
          captureId={captureId}
          worker={report.reference_worker}
          focus={{ startNs, durationNs: endNs - startNs, name: "" }}
          findings={openIndices(report)}
          around="the shaded time"
          neighbors={[place > 0 ? place - 1 : undefined, place + 1 < stretches.length ? place + 1 : undefined]}
          select={setPlace}
        />
      </Below>
    </>
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
