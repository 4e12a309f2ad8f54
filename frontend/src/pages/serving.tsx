// An inference server: its steps by kind, and what its host does while the device waits.
import type { JSX } from "preact";
import { useCallback } from "preact/hooks";
import { fetchView } from "../state/api";
import { PlotFigure } from "../charts/plot-figure";
import { drawServerSteps, stepColor } from "../charts/serving-chart";
import { formatCount, formatDuration, formatPlural } from "../format";
import type { Report, ServingKind, ServingPhase, ServingView } from "../report";
import { describePeriod } from "../text";
import { Fetched } from "../widgets/fetched";
import { Head } from "../widgets/head";
import { LongName } from "../widgets/name";
import { type Column, SortableTable } from "../widgets/sortable-table";

interface Props {
  report: Report;
  captureId: string;
}

export function ServingPage({ report, captureId }: Props): JSX.Element {
  return (
    <Fetched of={captureId} fetch={(signal) => fetchView(captureId, "serving", signal)}>
      {(view) => <>{view && <ServingOf view={view} report={report} />}</>}
    </Fetched>
  );
}

/** One sentence: how long the steps take that generate tokens, for how many requests. */
export function describeServing(view: ServingView): string {
  const decode = view.kinds.find(({ kind }) => kind === "decode");
  const shown = decode ?? view.kinds[0];
  if (!shown) return "No steps";
  const name = `${shown.kind[0]?.toUpperCase()}${shown.kind.slice(1)}`;
  const takes = shown.steps === 1 ? `The ${shown.kind} step takes` : `${name} steps take`;
  const time = formatDuration(shown.period_ns ?? shown.device_ns);
  const requests = shown.requests === null ? "" : ` for ${formatPlural(shown.requests, "request")}`;
  return `${takes} ${time}${shown.period_ns === null ? " on the device" : ""}${requests}`;
}

function ServingOf({ view, report }: { view: ServingView; report: Report }): JSX.Element {
  const draw = useCallback((width: number) => drawServerSteps(view, width), [view]);
  const steps = view.kinds.reduce((sum, kind) => sum + kind.steps, 0);
  const what = view.is_device_time ? "Device time by step" : "Time by step";
  return (
    <>
      <Head
        title={describeServing(view)}
        facts={[
          report.workload.framework !== "unknown" && report.workload.framework,
          `${formatPlural(steps, "annotated step")}${report.steps.used === 0 ? ", too few to repeat" : ""}`,
          view.generated_per_s !== null && `decoding generates ${formatCount(Math.round(view.generated_per_s))} tokens per second`,
        ]}
      />
      <section aria-labelledby="kinds">
        <div class="section-head">
          <h2 id="kinds">Steps by kind</h2>
          <span class="muted">means over the steps</span>
        </div>
        <SortableTable caption="Steps by kind" columns={kindColumns(view.kinds)} rows={view.kinds} />
        {view.floor !== "" && <p class="muted table-note">{view.floor}</p>}
      </section>
      {view.step_ns.length > 1 && (
        <section class="card" aria-labelledby="server-steps">
          <div class="card-head">
            <h2 id="server-steps">{what}</h2>
          </div>
          <PlotFigure label={`${what}, ${formatPlural(view.step_ns.length, "step")}, colored by kind.`} draw={draw} />
          <ul class="legend-row">
            {view.kinds.map(({ kind }) => (
              <li key={kind}>
                <span class="swatch" style={{ background: stepColor(kind) }} aria-hidden="true" /> {kind}
              </li>
            ))}
          </ul>
          {view.truncated > 0 && <p class="muted">Not shown: {formatPlural(view.truncated, "later step")}.</p>}
        </section>
      )}
      {view.is_device_time && (
        <p class="muted">
          How long a step takes is unknown: the profile has fewer than three of them. Times are those of the device.
        </p>
      )}
      <section aria-labelledby="phases">
        <div class="section-head">
          <h2 id="phases">What the host does while the device waits</h2>
          <span class="muted">{describePeriod(report)}</span>
        </div>
        {view.phases.length === 0 ? (
          <p class="muted">The device does not wait for the host.</p>
        ) : (
          <SortableTable caption="Host work by phase" columns={PHASE_COLUMNS} rows={view.phases} />
        )}
      </section>
    </>
  );
}

function kindColumns(kinds: ServingKind[]): Column<ServingKind>[] {
  const columns: Column<ServingKind>[] = [
    {
      key: "kind",
      label: "Kind",
      unit: null,
      value: ({ kind }) => kind,
      render: ({ kind }) => (
        <span class="bound">
          <span class="swatch" style={{ background: stepColor(kind) }} aria-hidden="true" /> {kind}
        </span>
      ),
    },
    { key: "steps", label: "Steps", unit: "count", value: ({ steps }) => steps },
    { key: "requests", label: "Requests", unit: "count", value: ({ requests }) => requests },
    { key: "prompt", label: "Prompt tokens", unit: "count", value: ({ prefill_tokens: tokens }) => tokens },
    { key: "decoded", label: "Decode tokens", unit: "count", value: ({ decode_tokens: tokens }) => tokens },
    { key: "period", label: "Step", unit: "ns", value: ({ period_ns }) => period_ns },
    { key: "device", label: "Device", unit: "ns", value: ({ device_ns }) => device_ns },
    { key: "rate", label: "Tokens per second", unit: "tokens/s", value: ({ tokens_per_s }) => tokens_per_s },
    {
      key: "graphs",
      label: "Replay graphs",
      unit: null,
      value: ({ replayed_steps: replayed, steps }) => replayed / steps,
      render: ({ replayed_steps: replayed, steps }) => (replayed === steps ? "all" : replayed === 0 ? "none" : `${formatCount(replayed)} of ${formatCount(steps)}`),
    },
    { key: "share", label: "Work in graphs", unit: "share", value: ({ graph_share }) => graph_share },
    { key: "launches", label: "Other launches", unit: "count", value: ({ launches }) => launches },
    { key: "captured", label: "Padded to", unit: "count", value: ({ captured_requests: captured }) => captured },
  ];
  // Leave out columns without a value.
  return columns.filter(({ value }) => kinds.some((kind) => value(kind) !== null));
}

const PHASE_COLUMNS: Column<ServingPhase>[] = [
  { key: "phase", label: "Host", unit: null, value: ({ phase }) => phase },
  { key: "idle", label: "Device idle", unit: "ns", value: ({ idle_ns }) => idle_ns },
  {
    key: "code",
    label: "Mostly in",
    unit: null,
    value: ({ code }) => code[0]?.name ?? null,
    render: ({ code }) => (code[0] ? <LongName name={code[0].name} /> : "–"),
  },
];
