// The input pipeline: how long the step waits for it, and the tree of its iterators.
import type { ComponentChildren, JSX } from "preact";
import { useCallback } from "preact/hooks";
import { fetchView } from "../state/api";
import { PlotFigure } from "../charts/plot-figure";
import { drawSteps } from "../charts/steps-chart";
import { formatBytes, formatCount, formatDuration, formatPlural, formatShare } from "../format";
import type { FindingInfo, InputIterator, InputView, LoaderWorkers, Report, StepsView } from "../report";
import { openFinding } from "../state/store";
import { causeName, describePeriod, describeSaving } from "../text";
import { Fetched } from "../widgets/fetched";
import { Head } from "../widgets/head";
import { Prose } from "../widgets/prose";
import { ScrollBox } from "../widgets/scroll-box";
import { isAside } from "../findings/remark";
import { Severity } from "../findings/severity";

interface Props {
  report: Report;
  captureId: string;
}

export function InputPage({ report, captureId }: Props): JSX.Element {
  return (
    <Fetched of={captureId} fetch={(signal) => fetchView(captureId, "input", signal)}>
      {(view) => <Pipeline view={view} report={report} captureId={captureId} />}
    </Fetched>
  );
}

interface StallPart {
  key: string;
  label: string;
  color: string;
  ns: number;
}

/** The parts of the input wait, if the profile shows them. */
export function stallParts(view: InputView): StallPart[] {
  const parts: [key: string, label: string, color: string, ns: number | null | undefined][] = [
    ["on-demand", "Reading on demand", "var(--cause-input)", view.reading_on_demand_ns],
    ["ahead", "Reading ahead", "var(--cause-between-steps)", view.reading_ahead_ns],
    ["preprocessing", "Preprocessing", "var(--cause-synchronization)", view.preprocessing_ns],
    ["elsewhere", "Outside the pipeline", "var(--cause-unexplained)", view.elsewhere_ns],
  ];
  return parts.flatMap(([key, label, color, ns]) => (ns ? [{ key, label, color, ns }] : []));
}

/** The iterators in order of display, children right after their parent and the slowest first. */
export function orderTree(iterators: InputIterator[]): { index: number; depth: number }[] {
  const children = new Map<number | null, number[]>();
  iterators.forEach(({ parent }, index) => children.set(parent, [...(children.get(parent) ?? []), index]));
  const ordered: { index: number; depth: number }[] = [];
  const walk = (parent: number | null, depth: number): void => {
    const siblings = children.get(parent) ?? [];
    siblings.sort((a, b) => (iterators[b]?.total_ns ?? 0) - (iterators[a]?.total_ns ?? 0));
    for (const index of siblings) {
      ordered.push({ index, depth });
      walk(index, depth + 1);
    }
  };
  walk(null, 0);
  return ordered;
}

function describeInput(view: InputView): string {
  const worst = view.bottleneck == null ? undefined : view.iterators[view.bottleneck];
  if (view.stall_ns === null) return "Input wait is unknown";
  if (view.stall_ns === 0) return "The step never waits for input";
  const stall = `The step waits ${formatDuration(view.stall_ns)} for input`;
  return worst ? `${stall}, mostly in ${worst.kind}` : stall;
}

function Pipeline({ view, report, captureId }: Props & { view: InputView }): JSX.Element {
  const stepNs = report.overview.step_time_ns;
  const share = view.stall_ns !== null && stepNs ? view.stall_ns / stepNs : null;
  const parts = stallParts(view);
  return (
    <>
      <Head
        title={describeInput(view)}
        facts={[
          share !== null && `${formatShare(share)} of a ${formatDuration(stepNs)} step`,
          view.cores != null && formatPlural(view.cores, "core"),
          view.threads != null && `${formatPlural(view.threads, "thread")} in tf.data’s pool`,
          view.memory_bytes != null && `${formatBytes(view.memory_bytes)} of memory for tf.data`,
        ]}
      />
      {parts.length > 0 && <PartsCard id="stall" title="Input wait by part" parts={parts} />}
      {view.workers && <Workers workers={view.workers} />}
      <InputFindings report={report} />
      {view.iterators.length > 0 ? (
        <Tree view={view} report={report} />
      ) : (
        <>
          {report.steps.used > 1 && view.stall_ns !== null && view.stall_ns > 0 && (
            <StallBySteps captureId={captureId} />
          )}
          {!view.workers && (
            <section class="card" aria-labelledby="stages">
              <h2 id="stages">To see its stages</h2>
              <p>
                {report.framework === "pytorch" ? (
                  <>
                    If worker processes load the batches, wrap the loader in <code>time_workers(loader)</code> of{" "}
                    <code>tb_perfadvisor.instrument.torch</code>, and record again. If the training process loads
                    them, record with <code>with_stack=True</code>: the Host page then shows what a batch takes.
                  </>
                ) : (
                  "The profile has no tf.data iterators. Read the input through tf.data, or record again with TensorFlow’s default host tracer level."
                )}
              </p>
            </section>
          )}
        </>
      )}
    </>
  );
}

function StallBySteps({ captureId }: { captureId: string }): JSX.Element {
  return (
    <section class="card" aria-labelledby="stall-by-step">
      <div class="card-head">
        <h2 id="stall-by-step">Input wait per step</h2>
        <p class="muted">line: median</p>
      </div>
      <Fetched of={captureId} fetch={(signal) => fetchView(captureId, "steps", signal)}>
        {(view) => <StallChart view={onlyInput(view)} />}
      </Fetched>
    </section>
  );
}

/** The steps view reduced to the wait for input. */
function onlyInput(view: StepsView): StepsView {
  const waits = view.total_ns[view.causes.indexOf("input")] ?? view.index.map(() => 0);
  return { ...view, duration_ns: waits, causes: ["input"], total_ns: [waits], longest: [[]], slow: [] };
}

function StallChart({ view }: { view: StepsView }): JSX.Element {
  const draw = useCallback((width: number) => drawSteps(view, causeName, width), [view]);
  return <PlotFigure label="Input wait of each step." draw={draw} />;
}

/** Where the workers' time for a batch goes. */
export function workerParts({ waiting_ns: waiting, system_ns: system, computing_ns: computing }: LoaderWorkers): StallPart[] {
  const parts: StallPart[] = [
    { key: "waiting", label: "Waiting for files, locks or a processor", color: "var(--cause-input)", ns: waiting },
    { key: "system", label: "Operating system, such as opening and reading files", color: "var(--cause-synchronization)", ns: system ?? 0 },
    { key: "computing", label: "Computing, such as decoding and collating", color: "var(--cause-host-compute)", ns: computing },
  ];
  return parts.filter(({ ns }) => ns > 0);
}

/** What a batch is made of: `64 samples · 64 files · 12.3 MiB read (197 KiB per sample)`. */
export function describeBatch({ samples, files, read_bytes: bytes, collate_ns: collate }: LoaderWorkers): string {
  const perSample = samples && bytes !== null ? ` (${formatBytes(bytes / samples)} per sample)` : "";
  return [
    ...(samples ? [`${formatCount(samples)} samples`] : []),
    `${formatCount(files)} files opened`,
    ...(bytes === null ? [] : [`${formatBytes(bytes)} read${perSample}`]),
    ...(collate === null ? [] : [`${formatDuration(collate)} in collate_fn`]),
  ].join(" · ");
}

function Workers({ workers }: { workers: LoaderWorkers }): JSX.Element {
  const detail = `${formatDuration(workers.wall_ns)} per batch, ${formatPlural(workers.workers, "worker")} on ${formatPlural(workers.cores, "core")}`;
  return (
    <PartsCard id="workers" title="Workers of the loader" detail={detail} parts={workerParts(workers)}>
      <p class="muted workers-note">
        A batch: {describeBatch(workers)}. Means of {formatPlural(workers.batches, "batch", "batches")}.
      </p>
    </PartsCard>
  );
}

interface PartsProps {
  id: string;
  title: string;
  detail?: string;
  parts: StallPart[];
  children?: ComponentChildren;
}

/** A bar of the parts of some time, and their names. */
function PartsCard({ id, title, detail, parts, children }: PartsProps): JSX.Element {
  const total = parts.reduce((sum, { ns }) => sum + ns, 0);
  return (
    <section class="card breakdown" aria-labelledby={id}>
      <div class="card-head">
        <h2 id={id}>{title}</h2>
        {detail && <p class="muted">{detail}</p>}
      </div>
      <div class="stack" aria-hidden="true">
        {parts.map(({ key, color, ns }) => (
          <span key={key} style={{ flexGrow: ns, background: color }} />
        ))}
      </div>
      <ul class="legend legend-plain">
        {parts.map(({ key, label, color, ns }) => (
          <li key={key}>
            <span class="swatch" style={{ background: color }} aria-hidden="true" />
            <span class="legend-label">{label}</span>
            <span class="legend-time">{formatDuration(ns)}</span>
            <span class="legend-share">{formatShare(ns / total)}</span>
          </li>
        ))}
      </ul>
      {children}
    </section>
  );
}

function InputFindings({ report }: { report: Report }): JSX.Element | null {
  const findings = report.findings.filter((finding) => finding.category === "input" && !isAside(report.findings, finding));
  if (findings.length === 0) return null;
  const own = new Map(findings.map(({ rule_id: ruleId, saving }) => [ruleId, saving?.expected_ns]));
  // A finding inside another one is about the same time: its severity and its saving need not be said again.
  const isPart = ({ refines }: FindingInfo): boolean => refines !== null && own.has(refines);
  const isSame = (finding: FindingInfo): boolean =>
    isPart(finding) && own.get(finding.refines ?? "") === finding.saving?.expected_ns;
  return (
    <section aria-labelledby="input-findings">
      <div class="section-head">
        <h2 id="input-findings">Input findings</h2>
      </div>
      <ul class="card links">
        {findings.map((finding) => (
          <li key={finding.rule_id}>
            {isPart(finding) ? <span class="severity" /> : <Severity severity={finding.severity} />}
            <button type="button" class="event-button" onClick={() => openFinding(finding.rule_id)}>
              <Prose text={finding.title} />
            </button>
            {finding.saving && !isSame(finding) && (
              <span class="muted">saves {describeSaving(finding.saving).expected}</span>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}

function Tree({ view, report }: { view: InputView; report: Report }): JSX.Element {
  const { iterators } = view;
  const fullNs = Math.max(1, ...iterators.map((iterator) => iterator.stall_ns ?? iterator.self_ns));
  const hasStall = iterators.some(({ stall_ns: stallNs }) => stallNs != null);
  const hasFunctions = iterators.some(({ function_ns: functionNs }) => functionNs != null);
  return (
    <section aria-labelledby="iterators">
      <div class="section-head">
        <h2 id="iterators">Pipeline, from output to source</h2>
        <span class="muted">times {describePeriod(report)}</span>
      </div>
      <ScrollBox role="region" label="Iterators">
        <table class="tree">
          <thead>
            <tr>
              <th scope="col" class="text">Iterator</th>
              {hasStall && <th scope="col" class="number">Step wait</th>}
              <th scope="col" class="number">Self time</th>
              <th scope="col" class="number">Total time</th>
              {hasFunctions && <th scope="col" class="number">User function</th>}
              <th scope="col" class="number">Calls</th>
              <th scope="col" class="text">Settings</th>
            </tr>
          </thead>
          <tbody>
            {orderTree(iterators).map(({ index, depth }) => {
              const iterator = iterators[index] as InputIterator;
              const isBottleneck = index === view.bottleneck;
              return (
                <tr key={iterator.path} class={isBottleneck ? "chosen" : ""}>
                  <th scope="row" class="text">
                    <span class="tree-name" style={{ paddingLeft: `${depth * 18}px` }}>
                      {depth > 0 && <span class="tree-branch" aria-hidden="true" />}
                      <span title={iterator.path}>{iterator.kind}</span>
                      {isBottleneck && <span class="badge badge-late">bottleneck</span>}
                    </span>
                    <span
                      class="tree-bar"
                      aria-hidden="true"
                      style={{ width: `${(100 * (iterator.stall_ns ?? iterator.self_ns)) / fullNs}%` }}
                    />
                  </th>
                  {hasStall && <td class="number">{iterator.stall_ns == null ? "–" : formatDuration(iterator.stall_ns)}</td>}
                  <td class="number">{formatDuration(iterator.self_ns)}</td>
                  <td class="number">{formatDuration(iterator.total_ns)}</td>
                  {hasFunctions && (
                    <td class="number">{iterator.function_ns == null ? "–" : formatDuration(iterator.function_ns)}</td>
                  )}
                  <td class="number">{formatCount(iterator.calls)}</td>
                  <td class="text">
                    {describeSettings(iterator)}
                    {iterator.dataset && <span class="muted tree-dataset">{iterator.dataset}</span>}
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </ScrollBox>
    </section>
  );
}

function describeSettings(iterator: InputIterator): string {
  const parts: string[] = [];
  if (iterator.parallelism != null) parts.push(`${iterator.parallelism} in parallel${iterator.is_autotuned ? " (autotuned)" : ""}`);
  if (iterator.batch_size != null) parts.push(`batch ${formatCount(iterator.batch_size)}`);
  if (iterator.buffer_size != null) parts.push(`buffer ${formatCount(iterator.buffer_size)}`);
  if (iterator.buffered != null) parts.push(`${formatCount(iterator.buffered)} buffered`);
  if (iterator.shapes) parts.push([iterator.types, iterator.shapes].filter(Boolean).join(" "));
  return parts.join(" · ");
}
