// Beside the findings, in view while one reads: where the one that is open costs time, or what proves it.
import type { JSX } from "preact";
import { EvidenceList } from "../../findings/evidence";
import { FindingTimeline, isOnTimeline } from "../../findings/finding-timeline";
import { findingIds } from "../../finding-ids";
import { formatDuration, formatPlural } from "../../format";
import type { BreakdownPart, Report, StepsView } from "../../report";
import { fetchView } from "../../state/api";
import { chooseCause, chosenCause } from "../../state/chosen-cause";
import { Below, useNumber } from "../../state/linked";
import { chosenFinding, pageLink } from "../../state/store";
import { hasTimeline } from "../../timeline/has-timeline";
import { Timeline } from "../../timeline/timeline";
import { CloseButton } from "../../widgets/close-button";
import { Fetched } from "../../widgets/fetched";
import { useIsWide } from "../../widgets/is-wide";
import { PageLink } from "../../widgets/page-link";

interface Props {
  report: Report;
  captureId: string;
}

/** In a narrow window, the finding that is open has its timeline in place. */
export function Pane({ report, captureId }: Props): JSX.Element | null {
  const isWide = useIsWide();
  const part = report.overview.breakdown.find(({ cause }) => cause === chosenCause.value);
  const id = chosenFinding.value;
  const finding = id === null ? undefined : report.findings[findingIds(report.findings).indexOf(id)];
  const whole = hasTimeline(report) && <PageLink to={pageLink("timeline")}>The whole timeline</PageLink>;
  if (part && !finding) {
    return (
      <PaneFrame title={`${part.label}: its longest stretches`} action={<CloseButton label="Close the events" onClick={() => chooseCause(null)} />}>
        <Below name="cause">
          <Stretches key={part.cause} part={part} report={report} captureId={captureId} />
        </Below>
      </PaneFrame>
    );
  }
  if (!isWide) return null;
  if (id !== null && finding && isOnTimeline(report, finding)) {
    return (
      <PaneFrame title="Where it costs time" action={whole}>
        <Below name={id}>
          <FindingTimeline finding={finding} report={report} captureId={captureId} />
        </Below>
      </PaneFrame>
    );
  }
  if (id !== null && finding && finding.evidence.length > 0) {
    return (
      <PaneFrame title="Evidence" action={whole}>
        <Below name={id}>
          <EvidenceList items={finding.evidence} />
        </Below>
      </PaneFrame>
    );
  }
  return hasTimeline(report) ? (
    <PaneFrame title={report.steps.used > 0 ? "A typical step" : "The recording"} action={whole}>
      <Below name="step">
        <Timeline captureId={captureId} worker={report.reference_worker} />
      </Below>
    </PaneFrame>
  ) : null;
}

function PaneFrame({ title, action, children }: { title: string; action: JSX.Element | false; children: JSX.Element }): JSX.Element {
  return (
    <section class="card pane" aria-labelledby="pane">
      <div class="section-head">
        <h2 id="pane">{title}</h2>
        {action}
      </div>
      {children}
    </section>
  );
}

/** The longest stretches of time of a cause, on a timeline. */
function Stretches({ part, report, captureId }: Props & { part: BreakdownPart }): JSX.Element {
  return (
    <Fetched of={`${captureId} ${part.cause}`} fetch={(signal) => fetchView(captureId, "steps", signal)}>
      {(view) => <StretchesOf view={view} part={part} report={report} captureId={captureId} />}
    </Fetched>
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
          around="the shaded time"
          neighbors={[place > 0 ? place - 1 : undefined, place + 1 < stretches.length ? place + 1 : undefined]}
          select={setPlace}
        />
      </Below>
    </>
  );
}
