// What changed from the base to each run, and why.
import type { JSX } from "preact";
import { useCallback } from "preact/hooks";
import { drawCauses, drawRuns } from "../charts/change-charts";
import { PlotFigure } from "../charts/plot-figure";
import { formatBytes, formatChange, formatDuration, formatShare } from "../format";
import type {
  ComparedRun, ComparedTarget, Comparison, FindingChange, OperationChange, OperationChanges, Scaling, LineChange, MemoryChanges,
} from "../report";
import { captureLink } from "../state/store";
import { Below, nameInLink, slug } from "../state/linked";
import { Fold } from "../widgets/fold";
import { CheckIcon, WarningIcon } from "../widgets/icons";
import { PageLink } from "../widgets/page-link";
import { LongName } from "../widgets/name";
import { Prose } from "../widgets/prose";
import { type Column, SortableTable } from "../widgets/sortable-table";

export const VERDICTS: Record<ComparedTarget["verdict"], string> = {
  faster: "Faster",
  slower: "Slower",
  inconclusive: "No clear change",
  scaled: "Scaling",
  no_steps: "No steps to compare",
  memory: "Memory",
  not_comparable: "Not comparable",
};
const OPERATION_STATUS: Record<OperationChange["status"], string> = {
  added: "new",
  removed: "gone",
  slower: "slower",
  faster: "faster",
};

export function RunChanges({ comparison }: { comparison: Comparison }): JSX.Element {
  const { base, targets, scaling_course: course = [] } = comparison;
  return (
    <>
      {course.length > 0 && (
        <section class="card" aria-labelledby="scaling-course">
          <h2 id="scaling-course">Scaling</h2>
          {course.map((sentence) => (
            <p key={sentence}>{sentence}</p>
          ))}
        </section>
      )}
      {targets.length > 1 && base.window_ns > 0 && <StepTimes base={base} targets={targets} />}
      {targets.map((target) => (
        <Below key={target.run.id} name={nameInLink(target.run.id)}>
          <Target target={target} base={base} isOnly={targets.length === 1} />
        </Below>
      ))}
      <RunTable base={base} targets={targets} />
    </>
  );
}

function StepTimes({ base, targets }: Pick<Comparison, "base" | "targets">): JSX.Element {
  const baseNs = targets[0]?.change.base_ns ?? base.window_ns;
  const draw = useCallback((width: number) => drawRuns(baseNs, targets, width), [baseNs, targets]);
  return (
    <section class="card" aria-labelledby="runs">
      <div class="card-head">
        <h2 id="runs">Step of each run</h2>
        <p class="muted">dashed line: {base.name}, {formatDuration(baseNs)}</p>
      </div>
      <PlotFigure label="Step of each run; the table at the end lists them." draw={draw} />
    </section>
  );
}

const MEASURE = { step: "per step", window: "over the whole recording" };

/** `−45.2 ms per step (−39.1 %); −49.5 ms to −39.2 ms (95 % confidence)`. */
function describeChange({ change }: ComparedTarget): string {
  const share = change.change_share === null ? "" : ` (${signedShare(change.change_share)})`;
  const text = `${formatChange(change.change_ns)} per step${share}`;
  if (change.low_ns === null || change.high_ns === null) return text;
  const confidence = formatShare(change.confidence).replace(".0 %", " %");
  const ends = `${formatChange(change.low_ns)} to ${formatChange(change.high_ns)}`;
  return `${text}; ${ends} (${confidence} confidence)`;
}

/** `95 % confidence: 78.1 % to 82.0 %`; empty if unknown. */
function describeEfficiency({ low_efficiency: low, high_efficiency: high }: Scaling): string {
  if (low === null || high === null) return "";
  return `efficiency with 95 % confidence: ${formatShare(low)} to ${formatShare(high)}`;
}

const signedShare = (share: number): string =>
  `${share > 0 ? "+" : share < 0 ? "−" : ""}${formatShare(Math.abs(share))}`;

function Target(props: { target: ComparedTarget; base: ComparedRun; isOnly: boolean }): JSX.Element {
  const { target, base, isOnly } = props;
  const { run, causes, kernels, operators, modules = null, warnings } = target;
  // Leave out causes that hardly changed.
  const changed = causes.filter(({ change_ns: ns }) => Math.abs(ns) >= target.change.base_ns / 1000);
  const draw = useCallback((width: number) => drawCauses(changed, width), [target]);
  const id = `target-${run.id}`;
  return (
    <section class="target" aria-labelledby={id}>
      <header class="headline">
        <h2 id={id}>
          <Prose text={target.headline} />
        </h2>
        <p class="subline">
          <span class={`badge verdict-${target.verdict}`}>{VERDICTS[target.verdict]}</span>
          <span>
            {run.name} vs. {base.name}
          </span>
          {target.scaling && <span>{describeEfficiency(target.scaling)}</span>}
          {target.per === "step" && target.verdict !== "not_comparable" && <span>{describeChange(target)}</span>}
        </p>
        {target.explanation && (
          <p>
            <Prose text={target.explanation} />
          </p>
        )}
        {target.logged?.sentences.map((sentence) => (
          <p key={sentence}>
            <Prose text={sentence} />
          </p>
        ))}
      </header>
      {warnings.length > 0 && (
        <ul class="notes card" aria-label="Why the runs may not be comparable">
          {warnings.map(({ id: key, message }) => (
            <li key={key} class="note note-warning">
              <WarningIcon />
              <p>
                <Prose text={message} />
              </p>
            </li>
          ))}
        </ul>
      )}
      {changed.length > 0 && (
        <section class="card" aria-label="Change by cause">
          <div class="card-head">
            <h3>Where the change comes from</h3>
            <p class="muted">
              {formatDuration(target.change.base_ns)} → {formatDuration(target.change.target_ns)}
            </p>
          </div>
          <PlotFigure label={describeCauses(changed)} draw={draw} />
        </section>
      )}
      <FindingChanges findings={target.findings} />
      {target.memory && target.memory.rows.length > 0 && <MemoryTable changes={target.memory} isOpen={isOnly} />}
      {(modules !== null || kernels !== null || operators !== null) && (
        <div class="card folds">
          {modules !== null && <OperationTable changes={modules} per={target.per} title="Modules" isOpen={isOnly} />}
          {kernels !== null && <OperationTable changes={kernels} per={target.per} title="Kernels" isOpen={isOnly} />}
          {operators !== null && (
            <OperationTable changes={operators} per={target.per} title="Operators" isOpen={isOnly && (kernels?.rows.length ?? 0) === 0} />
          )}
        </div>
      )}
    </section>
  );
}

const describeCauses = (causes: ComparedTarget["causes"]): string =>
  `Change of step time by cause: ${causes
    .map(({ label, change_ns: ns }) => `${label} ${formatChange(ns)}`)
    .join(", ")}.`;

function FindingChanges({ findings }: { findings: FindingChange[] }): JSX.Element | null {
  if (findings.length === 0) return null;
  return (
    <section class="card" aria-label="Findings">
      <div class="card-head">
        <h3>Findings before and after</h3>
        <p class="muted">predicted for the base vs. achieved</p>
      </div>
      <ul class="finding-changes">
        {findings.map((finding) => (
          <li key={finding.rule_id}>
            <span class={`outcome outcome-${(finding.outcome ?? "").toLowerCase()}`}>
              {finding.outcome === "Fixed" && <CheckIcon />}
              {finding.outcome}
            </span>
            <div>
              <p>
                <Prose text={finding.title} />
              </p>
              <p class="muted">
                <Prose text={finding.summary ?? ""} />
              </p>
            </div>
          </li>
        ))}
      </ul>
    </section>
  );
}

const OPERATION_COLUMNS: Column<OperationChange>[] = [
  {
    key: "name",
    label: "Name",
    unit: null,
    value: ({ name, target_name: other }) => (other ? `${name} → ${other}` : name),
    render: ({ name, target_name: other }) => <LongName name={other ? `${name} → ${other}` : name} />,
  },
  {
    key: "status",
    label: "Status",
    unit: null,
    value: ({ status, is_certain: isCertain }) => (isCertain === false ? "unclear" : OPERATION_STATUS[status]),
  },
  { key: "base", label: "Base", unit: "ns", value: ({ base_ns: ns }) => ns },
  { key: "target", label: "Run", unit: "ns", value: ({ target_ns: ns }) => ns },
  {
    key: "change",
    label: "Change",
    unit: "ns",
    value: ({ change_ns: ns }) => ns,
    render: ({ change_ns: ns }) => formatChange(ns),
  },
  { key: "base-count", label: "Base count", unit: "count", value: ({ base_count: count }) => count },
  { key: "target-count", label: "Run count", unit: "count", value: ({ target_count: count }) => count },
];
const COUNTS_OF_MODULES = new Map([
  ["base-count", "Base modules"],
  ["target-count", "Run modules"],
]);
const MODULE_COLUMNS: Column<OperationChange>[] = [
  ...OPERATION_COLUMNS.map((column) => ({ ...column, label: COUNTS_OF_MODULES.get(column.key) ?? column.label })),
  {
    key: "speed-up",
    label: "Speed-up",
    unit: "count",
    value: ({ speed_up: ratio = null }) => ratio,
    render: ({ speed_up: ratio, is_certain: isCertain }) => formatSpeedUp(ratio ?? null, isCertain === true),
  },
];
const OWN_TIME =
  "without the modules inside; what runs at the same time shares it, so the rows add up to no more than the whole. " +
  "* stands for the numbers of several modules.";

/** The base's time over the run's; `≈` if the change is not clear. */
const formatSpeedUp = (ratio: number | null, isClear: boolean): string =>
  ratio === null ? "–" : `${isClear ? "" : "≈ "}${ratio.toFixed(2)}×`;

function OperationTable(props: {
  changes: OperationChanges;
  per: ComparedTarget["per"];
  title: string;
  isOpen: boolean;
}): JSX.Element {
  const { changes, per, title, isOpen } = props;
  const isOfModules = title === "Modules";
  const columns = isOfModules ? MODULE_COLUMNS : OPERATION_COLUMNS;
  if (changes.rows.length === 0) {
    return <p class="fold fold-empty muted">{title}: no noticeable change</p>;
  }
  return (
    <Fold name={slug(title)} title={`${title} with changed time`} isOpen={isOpen}>
      <p class="muted">
        {changes.is_device_time ? "Time on the device" : "Time on the host"} {MEASURE[per]}
        {isOfModules && `, ${OWN_TIME}`}
      </p>
      <SortableTable
        caption={title}
        columns={columns.filter(({ key, value }) => key !== "speed-up" || changes.rows.some((row) => value(row) !== null))}
        rows={changes.rows}
        truncated={changes.truncated}
        filterLabel={`Find ${title.toLowerCase()}`}
      />
    </Fold>
  );
}

const LINE_COLUMNS: Column<LineChange>[] = [
  {
    key: "line",
    label: "Allocated at",
    unit: null,
    value: ({ line }) => line ?? "before the history, or an unknown line",
    render: ({ line }) =>
      line === null ? <span class="muted">before the history, or an unknown line</span> : <LongName name={line} />,
  },
  { key: "base", label: "Base", unit: "bytes", value: ({ base_bytes: bytes }) => bytes },
  { key: "target", label: "Run", unit: "bytes", value: ({ target_bytes: bytes }) => bytes },
  {
    key: "change",
    label: "Change",
    unit: "bytes",
    value: ({ change_bytes: bytes }) => bytes,
    render: ({ change_bytes: bytes }) => `${bytes > 0 ? "+" : "−"}${formatBytes(Math.abs(bytes))}`,
  },
];

function MemoryTable({ changes, isOpen }: { changes: MemoryChanges; isOpen: boolean }): JSX.Element {
  return (
    <div class="card folds">
      <Fold name="lines" title="Lines whose memory at the peak changed" isOpen={isOpen}>
        <p class="muted">
          Peak {formatBytes(changes.base_allocated_bytes)} → {formatBytes(changes.target_allocated_bytes)}, reserved{" "}
          {formatBytes(changes.base_reserved_bytes)} → {formatBytes(changes.target_reserved_bytes)}
        </p>
        <SortableTable
          caption="Memory at the peak by line"
          columns={LINE_COLUMNS}
          rows={changes.rows}
          truncated={changes.truncated}
          filterLabel="Find a line"
        />
      </Fold>
    </div>
  );
}

interface RunRow {
  run: ComparedRun;
  target: ComparedTarget | null;
}

const shareColumn = (key: string, label: string, value: (run: ComparedRun) => number | null): Column<RunRow> => ({
  key,
  label,
  unit: "share",
  value: ({ run }) => value(run),
});

/** How many times as fast; with another number of devices, by samples per second. */
const speedUp = (target: ComparedTarget | null): number | null =>
  target === null ? 1 : (target.scaling?.throughput_ratio ?? target.change.speed_up);

const RUN_COLUMNS: Column<RunRow>[] = [
  {
    key: "run",
    label: "Run",
    unit: null,
    value: ({ run }) => run.name,
    render: ({ run, target }) => (
      <>
        <PageLink to={captureLink(run.id)}>{run.name}</PageLink> {target === null && <span class="badge">base</span>}
      </>
    ),
  },
  { key: "step", label: "Step", unit: "ns", value: ({ run }) => run.step_time_ns },
  { key: "devices", label: "Devices", unit: "count", value: ({ run }) => run.devices },
  {
    key: "efficiency",
    label: "Scaling efficiency",
    unit: "share",
    value: ({ target }) => target?.scaling?.efficiency ?? null,
  },
  {
    key: "speed-up",
    label: "Speed-up",
    unit: "count",
    value: ({ target }) => speedUp(target),
    render: ({ target }) => formatSpeedUp(speedUp(target), target?.verdict !== "inconclusive"),
  },
  {
    key: "low",
    label: "95 % interval",
    unit: "share",
    value: ({ target }) => target?.change.low_share ?? null,
    render: ({ target }) => {
      const { low_share: low = null, high_share: high = null } = target?.change ?? {};
      return low === null || high === null ? "–" : `${signedShare(low)} to ${signedShare(high)}`;
    },
  },
  { key: "mfu", label: "MFU", unit: "share", value: ({ run }) => run.mfu },
  { key: "tokens", label: "Tokens/s", unit: "count", value: ({ run }) => run.tokens_per_s },
  { key: "samples", label: "Samples/s", unit: "count", value: ({ run }) => run.samples_per_s },
  shareColumn("compute", "Device compute", (run) => run.device_compute_share),
  shareColumn("half", "16-bit", (run) => run.sixteen_bit_share),
  shareColumn("input", "Input wait", (run) => run.input_wait_share),
  shareColumn("communication", "Exposed communication", (run) => run.exposed_communication_share),
  {
    key: "memory",
    label: "Peak memory",
    unit: "bytes",
    value: ({ run }) => run.peak_allocated_bytes,
    render: ({ run }) => (run.peak_allocated_bytes === null ? "–" : formatBytes(run.peak_allocated_bytes)),
  },
  { key: "findings", label: "Findings", unit: "count", value: ({ run }) => run.findings },
];

function RunTable({ base, targets }: Comparison): JSX.Element {
  const rows: RunRow[] = [{ run: base, target: null }, ...targets.map((target) => ({ run: target.run, target }))];
  // Leave out columns that are empty for all runs, such as device numbers on CPUs.
  const isScaled = new Set(rows.map(({ run }) => run.devices)).size > 1;
  const isOfRanks = rows.every(({ run }) => run.device === null);
  const columns = RUN_COLUMNS.filter(
    ({ key, value }) => rows.some((row) => value(row) !== null) && (isScaled || key !== "devices"),
  ).map((column) => (column.key === "devices" && isOfRanks ? { ...column, label: "Ranks" } : column));
  return (
    <section aria-labelledby="speed-ups">
      <div class="section-head">
        <h2 id="speed-ups">All runs</h2>
      </div>
      <SortableTable caption="All runs" columns={columns} rows={rows} filterLabel="Find a run" />
    </section>
  );
}
