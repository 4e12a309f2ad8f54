// Step times over the steps, fetched when the part is opened to view.
import type { JSX } from "preact";
import { useCallback, useEffect, useState } from "preact/hooks";
import { fetchView } from "../api";
import { PlotFigure } from "../charts/plot-figure";
import { describeStepsChart, drawSteps, stepsPerBar } from "../charts/steps-chart";
import { formatDuration, formatPlural } from "../format";
import type { Report, StepsView } from "../report";

export function Steps({ report, captureId }: { report: Report; captureId: string }): JSX.Element | null {
  const [view, setView] = useState<StepsView | null>(null);
  const hasSteps = report.steps.used > 0;
  useEffect(() => {
    if (!hasSteps) return undefined;
    const controller = new AbortController();
    // Without the chart the report is whole, so a failure leaves only the chart out.
    fetchView(captureId, "steps", controller.signal).then(setView, () => undefined);
    return () => controller.abort();
  }, [captureId, report]);
  const draw = useCallback(
    (width: number) => {
      const labels = report.overview.breakdown.map(({ cause, label }) => [cause, label] as const);
      return drawSteps(view as StepsView, new Map(labels), width);
    },
    [view, report],
  );
  if (!view || view.index.length < 2) return null;
  const perBar = stepsPerBar(view);
  return (
    <section class="card" aria-labelledby="steps">
      <div class="card-head">
        <h2 id="steps">Step by step</h2>
        <StepTimes report={report} />
      </div>
      <PlotFigure label={describeStepsChart(view)} draw={draw} />
      {perBar > 1 && <p class="muted">Each bar is the mean of {formatPlural(perBar, "step")}.</p>}
      <Excluded report={report} />
    </section>
  );
}

function StepTimes({ report: { steps } }: { report: Report }): JSX.Element {
  const times = [
    ["median", steps.median_ns],
    ["p90", steps.p90_ns],
    ["slowest", steps.max_ns],
  ] as const;
  return (
    <p class="muted step-times">
      {times.map(([name, valueNs]) =>
        valueNs === null ? null : (
          <span key={name}>
            {name} {formatDuration(valueNs)}
          </span>
        ),
      )}
    </p>
  );
}

function Excluded({ report: { steps } }: { report: Report }): JSX.Element | null {
  if (steps.excluded.length === 0) return null;
  const listed = steps.excluded.map(({ index, reason }) => `${index} (${reason})`).join(", ");
  return <p class="muted">Not counted, drawn faint: {listed}.</p>;
}
