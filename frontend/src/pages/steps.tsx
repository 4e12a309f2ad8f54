// The steps: where the time of each goes, which are unusually slow, and why.
import type { ComponentChildren, JSX } from "preact";
import { useCallback, useMemo } from "preact/hooks";
import { fetchView } from "../state/api";
import { isExported } from "../state/exported";
import { Below, useChosenRow } from "../state/linked";
import { blocksOf, drawBreakdownBar } from "../charts/breakdown-bar";
import { causeColor } from "../charts/colors";
import { PlotFigure } from "../charts/plot-figure";
import { median } from "../charts/median";
import { describeStepsChart, drawSteps, stepsPerBar } from "../charts/steps-chart";
import { formatChange, formatCount, formatDuration, formatPlural } from "../format";
import type { Report, SlowStep, StepsView } from "../report";
import { causeName, describeSteps } from "../text";
import { type Column, SortableTable } from "../widgets/sortable-table";
import { Fetched } from "../widgets/fetched";
import { Head } from "../widgets/head";
import { Legend } from "../widgets/legend";
import { ChosenRow } from "./chosen-row";

interface Props {
  report: Report;
  captureId: string;
}

/** The steps of this recording, and below them the children. */
export function Steps({ report, captureId, children }: Props & { children: ComponentChildren }): JSX.Element {
  return (
    <Fetched of={captureId} fetch={(signal) => fetchView(captureId, "steps", signal)}>
      {(view) => (
        <>
          <StepsOf view={view} report={report} captureId={captureId} />
          {children}
        </>
      )}
    </Fetched>
  );
}

/** Step times within this part of the median are called steady. */
const STEADY = 0.05;

/** Fewer steps do not show whether they are steady. */
const FEWEST_STEADY = 3;

/** One sentence: how steady the steps are, or which are slow. */
export function describeTimes(view: StepsView): string {
  const times = view.duration_ns;
  const [least, middle, most] = [Math.min(...times), median(times), Math.max(...times)];
  if (times.length === 1) return `One step of ${formatDuration(most)}`;
  const slow = view.slow ?? [];
  const [only] = slow;
  if (only && slow.length === 1) {
    const extra = formatDuration((times[only.place] ?? 0) - middle);
    return `Step ${view.index[only.place]} takes ${extra} longer than the median of ${formatDuration(middle)}`;
  }
  if (slow.length > 1) {
    return `${slow.length} of ${formatPlural(times.length, "step")} take much longer than the median of ${formatDuration(middle)}`;
  }
  if (times.length < FEWEST_STEADY) return `Steps of ${times.map((ns) => formatDuration(ns)).join(" and ")}`;
  if (most - least <= STEADY * middle) return `Steps are steady at about ${formatDuration(middle)}`;
  return `Steps vary from ${formatDuration(least)} to ${formatDuration(most)}`;
}

function StepsOf({ view, report, captureId }: Props & { view: StepsView }): JSX.Element {
  const places = useMemo(() => [...view.index.keys()], [view]);
  const [row, setChosen] = useChosenRow("step", places, (place) => String(view.index[place]));
  const chosen = row ?? null;
  const draw = useCallback((width: number) => drawSteps(view, causeName, width, chosen), [view, chosen]);
  // A single step has no course: one bar, as in the report.
  const drawOnly = useCallback(
    (width: number) => drawBreakdownBar(blocksOf(report.overview.breakdown), report.overview.steps, width, null),
    [report],
  );
  const columns = useMemo(() => stepColumns(view, setChosen), [view]);
  const perBar = stepsPerBar(view);
  const slow = view.slow ?? [];
  const { steps } = report;
  const times = [
    ["median", steps.median_ns],
    ["p90", steps.p90_ns],
    ["slowest", steps.max_ns],
  ] as const;
  return (
    <>
      <Head
        title={describeTimes(view)}
        facts={[
          describeSteps(report),
          ...(view.index.length > 1 ? times : []).map(([name, ns]) => ns !== null && `${name} ${formatDuration(ns)}`),
        ]}
      />
      <section class="card" aria-labelledby="steps">
        <div class="card-head">
          <h2 id="steps">{view.index.length > 1 ? "Time per step by cause" : "Time of the step by cause"}</h2>
          {view.index.length > 1 && (
            <p class="muted">
              line: median{slow.length > 0 && "; triangles: unusually slow steps"}
            </p>
          )}
        </div>
        {view.index.length > 1 ? (
          <PlotFigure
            label={describeStepsChart(view)}
            draw={draw}
            onPick={(bar) => setChosen((bar as { place: number }).place)}
          />
        ) : (
          <PlotFigure class="breakdown-bar" label="The step’s time by cause; the table below has the numbers." draw={drawOnly} />
        )}
        <Legend
          entries={view.causes.flatMap((cause, row) => (isWorthAColumn(view, row) ? [[causeColor(cause), causeName(cause)]] : []))}
        />
        {perBar > 1 && <p class="muted">Each bar is the mean of {formatPlural(perBar, "step")}.</p>}
        <Excluded report={report} />
      </section>
      {chosen !== null && (
        <Below name="step">
          <Step view={view} place={chosen} report={report} captureId={captureId} close={() => setChosen(undefined)} />
        </Below>
      )}
      <section aria-labelledby="steps-table">
        <div class="section-head">
          <h2 id="steps-table">All steps</h2>
        </div>
        <SortableTable
          caption="All steps"
          columns={columns}
          rows={places}
          chosen={chosen ?? undefined}
          sort={{ key: slow.length > 0 ? "duration" : "step", isDescending: slow.length > 0 }}
          filterLabel="Find a step"
        />
      </section>
    </>
  );
}

/** A cause that takes less of every step than this gets no column: its place would be zeros. */
const WORTH_A_COLUMN = 0.005;

function isWorthAColumn(view: StepsView, row: number): boolean {
  return view.duration_ns.some((ns, step) => (view.total_ns[row]?.[step] ?? 0) >= WORTH_A_COLUMN * ns);
}

const KINDS: Record<SlowStep["kind"], string> = {
  outlier: "outlier",
  periodic: "periodic",
  "warm-up": "warm-up",
};

function stepColumns(
  view: StepsView,
  choose: (step: number) => void,
): Column<number>[] {
  const middle = median(view.duration_ns);
  const slow = new Map((view.slow ?? []).map((step) => [step.place, step]));
  const difference = (step: number): number => (view.duration_ns[step] ?? 0) - middle;
  const columns: Column<number>[] = [
    {
      key: "step",
      label: "Step",
      unit: "count",
      value: (step) => view.index[step] ?? step,
      ...(isExported ? {} : { open: choose }),
      render: (step) => {
        const mark = slow.get(step);
        return (
          <>
            {mark && <span class="badge badge-late">{KINDS[mark.kind]}</span>} {formatCount(view.index[step] ?? step)}
          </>
        );
      },
    },
    { key: "duration", label: "Duration", unit: "ns", value: (step) => view.duration_ns[step] ?? null },
  ];
  if (view.index.length > 1) {
    columns.push({
      key: "difference",
      label: "vs. median",
      unit: "ns",
      value: difference,
      render: (step) => formatChange(difference(step)),
    });
  }
  if (slow.size > 0) {
    columns.push({
      key: "grown",
      label: "Main increase",
      unit: null,
      value: (step) => slow.get(step)?.part ?? null,
      render: (step) => {
        const mark = slow.get(step);
        return mark ? `${mark.part} ${formatChange(mark.excess_ns)}` : "–";
      },
    });
  }
  view.causes.forEach((cause, row) => {
    if (!isWorthAColumn(view, row)) return;
    columns.push({ key: cause, label: causeName(cause), unit: "ns", value: (step) => view.total_ns[row]?.[step] ?? null });
  });
  return columns;
}

interface StepProps extends Props {
  view: StepsView;
  /** Index into the view's lists. */
  place: number;
  close(): void;
}

/** A step: what took longer or shorter than in the median step, and its events. */
function Step({ view, place, report, captureId, close }: StepProps): JSX.Element {
  const [startNs, durationNs] = [view.start_ns[place] ?? 0, view.duration_ns[place] ?? 0];
  const title = `Step ${view.index[place]}`;
  const changes = view.causes
    .map((cause, row) => {
      const times = view.total_ns[row] ?? [];
      return { cause, ns: times[place] ?? 0, change: (times[place] ?? 0) - median(times) };
    })
    .filter(({ change }) => Math.abs(change) >= WORTH_A_COLUMN * durationNs)
    .sort((a, b) => Math.abs(b.change) - Math.abs(a.change));
  return (
    <ChosenRow
      report={report}
      captureId={captureId}
      title={`${title}: ${formatDuration(durationNs)}`}
      focus={{ startNs, durationNs, name: "" }}
      fill={0.97}
      around={title.toLowerCase()}
      close={close}
    >
      {view.index.length > 1 && (
        <p class="legend-row">
          {changes.length === 0 && "No cause differs from its median over the steps."}
          {changes.map(({ cause, change }) => (
            <span key={cause} class="bound">
              <span class="swatch" style={{ background: causeColor(cause) }} aria-hidden="true" /> {causeName(cause)}{" "}
              {formatChange(change)}
            </span>
          ))}
          {changes.length > 0 && <span>vs. median step</span>}
        </p>
      )}
    </ChosenRow>
  );
}

function Excluded({ report: { steps } }: { report: Report }): JSX.Element | null {
  if (steps.excluded.length === 0) return null;
  const listed = steps.excluded.map(({ index, reason }) => `${index} (${reason})`).join(", ");
  return <p class="muted">Excluded steps: {listed}.</p>;
}
