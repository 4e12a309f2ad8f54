// The input pipeline: what the step waits for in it, and the tree of its iterators.
import type { JSX } from "preact";
import { useCallback } from "preact/hooks";
import { fetchView } from "../api";
import { PlotFigure } from "../charts/plot-figure";
import { drawSteps } from "../charts/steps-chart";
import { formatBytes, formatCount, formatDuration, formatPlural, formatShare } from "../format";
import type { InputIterator, InputView, Report, StepsView } from "../report";
import { showFinding } from "../state";
import { causeNames, describeSaving } from "../text";
import { Fetched, Nothing } from "./fetched";
import { Prose } from "./prose";
import { Severity } from "./severity";

interface Props {
  report: Report;
  captureId: string;
}

export function Input({ report, captureId }: Props): JSX.Element {
  return (
    <Fetched of={captureId} fetch={(signal) => fetchView(captureId, "input", signal)}>
      {(view) =>
        view.stall_ns === null && view.iterators.length === 0 ? (
          <Nothing title="This profile does not show its input pipeline">
            <p>
              PyTorch’s profiler records the loader with <code>activities=[ProfilerActivity.CPU, …]</code> in the
              process that iterates it; TensorFlow records tf.data with its default host tracer level.
            </p>
          </Nothing>
        ) : (
          <Pipeline view={view} report={report} captureId={captureId} />
        )
      }
    </Fetched>
  );
}

interface StallPart {
  key: string;
  label: string;
  color: string;
  ns: number;
}

/** What the step waits for, where the pipeline tells. */
export function stallParts(view: InputView): StallPart[] {
  const parts: [key: string, label: string, color: string, ns: number | null | undefined][] = [
    ["on-demand", "Reading on demand", "var(--cause-input)", view.reading_on_demand_ns],
    ["ahead", "Reading ahead", "var(--cause-between-steps)", view.reading_ahead_ns],
    ["preprocessing", "Preprocessing", "var(--cause-synchronization)", view.preprocessing_ns],
    ["elsewhere", "Outside the pipeline", "var(--cause-unexplained)", view.elsewhere_ns],
  ];
  return parts.flatMap(([key, label, color, ns]) => (ns ? [{ key, label, color, ns }] : []));
}

/** Each iterator with how deep it lies, children right after their parent, the slowest first. */
export function orderTree(iterators: InputIterator[]): { place: number; depth: number }[] {
  const children = new Map<number | null, number[]>();
  iterators.forEach(({ parent }, place) => children.set(parent, [...(children.get(parent) ?? []), place]));
  const ordered: { place: number; depth: number }[] = [];
  const walk = (parent: number | null, depth: number): void => {
    const places = children.get(parent) ?? [];
    places.sort((a, b) => (iterators[b]?.total_ns ?? 0) - (iterators[a]?.total_ns ?? 0));
    for (const place of places) {
      ordered.push({ place, depth });
      walk(place, depth + 1);
    }
  };
  walk(null, 0);
  return ordered;
}

function describeInput(view: InputView): string {
  const worst = view.bottleneck == null ? undefined : view.iterators[view.bottleneck];
  if (view.stall_ns === null) return "How long the step waits for input is not known";
  if (view.stall_ns === 0) return "The step never waits for input";
  const stall = `The step waits ${formatDuration(view.stall_ns)} for input`;
  return worst ? `${stall}, most of it in ${worst.kind}` : stall;
}

function Pipeline({ view, report, captureId }: Props & { view: InputView }): JSX.Element {
  const stepNs = report.overview.step_time_ns;
  const share = view.stall_ns !== null && stepNs ? view.stall_ns / stepNs : null;
  const parts = stallParts(view);
  return (
    <>
      <header class="headline">
        <h1>{describeInput(view)}</h1>
        <p class="subline">
          {share !== null && (
            <span>
              {formatShare(share)} of a {formatDuration(stepNs)} step
            </span>
          )}
          {view.cores != null && <span>{formatPlural(view.cores, "core")}</span>}
          {view.threads != null && <span>{formatPlural(view.threads, "thread")} in tf.data’s pool</span>}
          {view.memory_bytes != null && <span>{formatBytes(view.memory_bytes)} of memory for tf.data</span>}
        </p>
      </header>
      {parts.length > 0 && <Stall parts={parts} />}
      <InputFindings report={report} />
      {view.iterators.length > 0 ? (
        <Tree view={view} />
      ) : (
        <>
          {report.steps.used > 1 && view.stall_ns !== null && view.stall_ns > 0 && (
            <StallBySteps report={report} captureId={captureId} />
          )}
          <p class="muted">
            {report.framework === "pytorch"
              ? "PyTorch’s profiler sees the loader from the step’s side alone: what its workers do is not in the trace."
              : "The profile has no iterators of tf.data: what happens inside the input pipeline is not in it."}
          </p>
        </>
      )}
    </>
  );
}

/** What the step waits for input, over the steps. */
function StallBySteps({ report, captureId }: Props): JSX.Element {
  return (
    <section class="card" aria-labelledby="stall-by-step">
      <div class="card-head">
        <h2 id="stall-by-step">Waiting for input, step by step</h2>
        <p class="muted">the line is the median</p>
      </div>
      <Fetched of={captureId} fetch={(signal) => fetchView(captureId, "steps", signal)}>
        {(view) => <StallChart view={onlyInput(view)} labels={causeNames(report)} />}
      </Fetched>
    </section>
  );
}

/** A view of the steps in which all that counts is their wait for input. */
function onlyInput(view: StepsView): StepsView {
  const waits = view.total_ns[view.causes.indexOf("input")] ?? view.index.map(() => 0);
  return { index: view.index, duration_ns: waits, causes: ["input"], total_ns: [waits], slow: [] };
}

function StallChart({ view, labels }: { view: StepsView; labels: (cause: string) => string }): JSX.Element {
  const draw = useCallback((width: number) => drawSteps(view, labels, width), [view, labels]);
  return <PlotFigure label="How long each step waits for input." draw={draw} />;
}

function Stall({ parts }: { parts: StallPart[] }): JSX.Element {
  const total = parts.reduce((sum, { ns }) => sum + ns, 0);
  return (
    <section class="card breakdown" aria-labelledby="stall">
      <div class="card-head">
        <h2 id="stall">What the step waits for</h2>
      </div>
      <div class="stack" aria-hidden="true">
        {parts.map(({ key, color, ns }) => (
          <span key={key} style={{ flexGrow: ns, background: color }} />
        ))}
      </div>
      <ul class="legend">
        {parts.map(({ key, label, color, ns }) => (
          <li key={key}>
            <span class="swatch" style={{ background: color }} aria-hidden="true" />
            <span class="legend-label">{label}</span>
            <span class="legend-time">{formatDuration(ns)}</span>
            <span class="legend-share">{formatShare(ns / total)}</span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function InputFindings({ report }: { report: Report }): JSX.Element | null {
  const findings = report.findings.filter(({ category }) => category === "input");
  if (findings.length === 0) return null;
  return (
    <section aria-labelledby="input-findings">
      <div class="section-head">
        <h2 id="input-findings">What to change in it</h2>
      </div>
      <ul class="card links">
        {findings.map(({ rule_id: ruleId, title, severity, saving }) => (
          <li key={ruleId}>
            <Severity severity={severity} />
            <button type="button" class="event-button" onClick={() => showFinding(ruleId)}>
              <Prose text={title} />
            </button>
            {saving && <span class="muted">saves {describeSaving(saving).expected}</span>}
          </li>
        ))}
      </ul>
    </section>
  );
}

function Tree({ view }: { view: InputView }): JSX.Element {
  const { iterators } = view;
  const fullNs = Math.max(1, ...iterators.map((one) => one.stall_ns ?? one.self_ns));
  const hasStall = iterators.some(({ stall_ns: stallNs }) => stallNs != null);
  const hasFunctions = iterators.some(({ function_ns: functionNs }) => functionNs != null);
  return (
    <section aria-labelledby="iterators">
      <div class="section-head">
        <h2 id="iterators">The pipeline, from its end to its source</h2>
        <span class="muted">times per step</span>
      </div>
      <div class="table-scroll" role="region" aria-label="Iterators" tabIndex={0}>
        <table class="tree">
          <thead>
            <tr>
              <th scope="col" class="text">Iterator</th>
              {hasStall && <th scope="col" class="number">Step waits</th>}
              <th scope="col" class="number">Itself</th>
              <th scope="col" class="number">With its inputs</th>
              {hasFunctions && <th scope="col" class="number">User function</th>}
              <th scope="col" class="number">Calls</th>
              <th scope="col" class="text">Settings</th>
            </tr>
          </thead>
          <tbody>
            {orderTree(iterators).map(({ place, depth }) => {
              const one = iterators[place] as InputIterator;
              const isWorst = place === view.bottleneck;
              return (
                <tr key={one.path} class={isWorst ? "chosen" : ""}>
                  <th scope="row" class="text">
                    <span class="tree-name" style={{ paddingLeft: `${depth * 18}px` }}>
                      {depth > 0 && <span class="tree-branch" aria-hidden="true" />}
                      <span title={one.path}>{one.kind}</span>
                      {isWorst && <span class="badge badge-late">bottleneck</span>}
                    </span>
                    <span
                      class="tree-bar"
                      aria-hidden="true"
                      style={{ width: `${(100 * (one.stall_ns ?? one.self_ns)) / fullNs}%` }}
                    />
                  </th>
                  {hasStall && <td class="number">{one.stall_ns == null ? "–" : formatDuration(one.stall_ns)}</td>}
                  <td class="number">{formatDuration(one.self_ns)}</td>
                  <td class="number">{formatDuration(one.total_ns)}</td>
                  {hasFunctions && (
                    <td class="number">{one.function_ns == null ? "–" : formatDuration(one.function_ns)}</td>
                  )}
                  <td class="number">{formatCount(one.calls)}</td>
                  <td class="text">
                    {describeSettings(one)}
                    {one.dataset && <span class="muted tree-dataset">{one.dataset}</span>}
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </section>
  );
}

export function describeSettings(one: InputIterator): string {
  const parts: string[] = [];
  if (one.parallelism != null) parts.push(`${one.parallelism} in parallel${one.is_autotuned ? " (autotuned)" : ""}`);
  if (one.batch_size != null) parts.push(`batch ${formatCount(one.batch_size)}`);
  if (one.buffer_size != null) parts.push(`buffer ${formatCount(one.buffer_size)}`);
  if (one.buffered != null) parts.push(`${formatCount(one.buffered)} buffered`);
  if (one.shapes) parts.push([one.types, one.shapes].filter(Boolean).join(" "));
  return parts.join(" · ");
}
