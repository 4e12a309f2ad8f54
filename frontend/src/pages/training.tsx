// The whole run: time per step with the profiled moments, what else took time, and what was logged.
import type { JSX } from "preact";
import { useCallback, useEffect } from "preact/hooks";
import { PlotFigure } from "../charts/plot-figure";
import { REASONS, describeTimes, drawCurve, drawTimes } from "../charts/training-charts";
import { formatCount, formatElapsed, formatShare } from "../format";
import type { Curve, DelayInfo, TrainingView } from "../report";
import { linkPrice, runOptions, setPrice, setTotalSteps, toPrice, toSteps } from "../state/run-options";
import { loadRunView, runViewOf } from "../state/run-view";
import { captureLink } from "../state/store";
import { sessionName } from "../text";
import { Failure } from "../widgets/failure";
import { Head } from "../widgets/head";
import { Legend } from "../widgets/legend";
import { PageLink } from "../widgets/page-link";
import { Prose } from "../widgets/prose";
import { type Column, SortableTable } from "../widgets/sortable-table";

interface Props {
  captureId: string;
  isPart: boolean;
}

export function Training({ captureId, isPart }: Props): JSX.Element {
  const options = runOptions.value;
  useEffect(() => loadRunView(captureId), [captureId, options]);
  const load = runViewOf(captureId);
  if (load.state === "failed") return <Failure error={load.error} onRetry={() => loadRunView(captureId, true)} />;
  if (load.state === "ready") {
    return load.value ? <Run view={load.value} captureId={captureId} isPart={isPart} /> : <NoScalars isPart={isPart} />;
  }
  const share = load.state === "running" ? load.progress.progress : null;
  return (
    <p class="waiting muted" role="status">
      Reading the scalars of the run{share !== null && `: ${Math.round(share * 100)} %`}
    </p>
  );
}

function NoScalars({ isPart }: { isPart: boolean }): JSX.Element {
  return (
    <Head title="No scalars show how this run went on" isPart={isPart}>
      <p class="muted">Log a scalar every few steps into the directory of the profile.</p>
    </Head>
  );
}

function Run({ view, captureId, isPart }: Props & { view: TrainingView }): JSX.Element {
  const draw = useCallback((width: number) => drawTimes(view, width), [view]);
  const reasons = Object.keys(REASONS).filter((reason) => view.times.reason.includes(reason));
  return (
    <>
      <Head title={<Prose text={view.headline} />} isPart={isPart}>
        {view.facts.map((fact) => (
          <p key={fact} class="fact">
            <Prose text={fact} />
          </p>
        ))}
      </Head>
      <section class="card" aria-labelledby="times">
        <div class="card-head">
          <h2 id="times">Time per {view.unit}</h2>
          <p class="muted">{view.regimes.length > 1 ? "lines across: medians of each part" : "line across: median"}; diamonds: profiles</p>
        </div>
        <PlotFigure label={describeTimes(view)} draw={draw} />
        {reasons.length > 0 && (
          <Legend entries={reasons.map((reason) => [REASONS[reason]?.[1] ?? "", REASONS[reason]?.[0] ?? ""])}>
            <li>triangles: beyond the chart</li>
          </Legend>
        )}
      </section>
      <Delays view={view} />
      <Profiles view={view} captureId={captureId} />
      {[...(view.loss ? [view.loss] : []), ...view.rates].map((curve) => (
        <CurveCard key={curve.tag} view={view} curve={curve} />
      ))}
    </>
  );
}

function CurveCard({ view, curve }: { view: TrainingView; curve: Curve }): JSX.Element {
  const draw = useCallback((width: number) => drawCurve(view, curve, width), [view, curve]);
  const id = `curve-${curve.label.toLowerCase().replaceAll(" ", "-")}`;
  return (
    <section class="card" aria-labelledby={id}>
      <div class="card-head">
        <h2 id={id}>{curve.label}</h2>
        <p class="muted name">
          {curve.tag}
          {curve.per_device !== null && (curve.per_device ? ", per device" : ", on all devices")}
        </p>
      </div>
      <PlotFigure label={`${curve.label} over the run`} draw={draw} />
    </section>
  );
}

function Delays({ view }: { view: TrainingView }): JSX.Element {
  if (view.delays.length === 0) {
    return <p class="muted">Nothing else cost 1 % of the run or more.</p>;
  }
  const columns: Column<DelayInfo>[] = [
    { key: "label", label: "Reason", unit: null, value: ({ label }) => label, render: ({ label }) => <Prose text={label} /> },
    {
      key: "steps",
      label: view.unit === "epoch" ? "Epochs" : "Steps",
      unit: "",
      value: ({ first_step: step }) => step,
      render: ({ first_step: first, last_step: last }) => `${formatCount(first)}–${formatCount(last)}`,
    },
    { key: "count", label: "Times", unit: "", value: ({ count }) => count },
    { key: "cost", label: "Cost", unit: "ns", value: ({ cost_ns: ns }) => ns, render: ({ cost_ns: ns }) => formatElapsed(ns) },
    { key: "share", label: "Of the run", unit: "share", value: ({ share }) => share, render: ({ share }) => formatShare(share) },
  ];
  return (
    <section aria-labelledby="delays">
      <div class="section-head">
        <h2 id="delays">What else took time</h2>
      </div>
      <SortableTable caption="What else took time" columns={columns} rows={view.delays} />
    </section>
  );
}

function Profiles({ view, captureId }: { view: TrainingView; captureId: string }): JSX.Element {
  return (
    <section class="card" aria-labelledby="profiles">
      <div class="card-head">
        <h2 id="profiles">Profiles of this run</h2>
        <Options />
      </div>
      <ul class="run-profiles">
        {view.recordings.map(({ capture_id: id, session, sentence, whole_run: about }) => (
          <li key={id}>
            <PageLink to={captureLink(id)} isCurrent={id === captureId}>
              {sessionName(session) || "Profile"}
            </PageLink>
            <p>
              <Prose text={[sentence, ...(about?.sentences.slice(1) ?? [])].join(" ")} />
            </p>
          </li>
        ))}
        {view.unknown_profiles.map(({ capture_id: id, session, reason }) => (
          <li key={id}>
            <PageLink to={captureLink(id)} isCurrent={id === captureId}>
              {sessionName(session) || "Profile"}
            </PageLink>
            <p class="muted">{reason}</p>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** What the user knows about the run: its price and its end. */
function Options(): JSX.Element {
  const { pricePerDeviceHour, totalSteps } = runOptions.value;
  useEffect(linkPrice, []);
  return (
    <form class="run-options" onSubmit={(event) => event.preventDefault()}>
      <label>
        Price per device and hour
        <input
          type="number"
          min="0"
          step="any"
          value={pricePerDeviceHour ?? ""}
          onChange={({ currentTarget }) => setPrice(toPrice(currentTarget.value))}
        />
      </label>
      <label>
        Last step of the run
        <input
          type="number"
          min="1"
          step="1"
          value={totalSteps ?? ""}
          onChange={({ currentTarget }) => setTotalSteps(toSteps(currentTarget.value))}
        />
      </label>
    </form>
  );
}
