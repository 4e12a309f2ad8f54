// The operators: which take the most time of their own, and which module and line they come from.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { fetchView } from "../state/api";
import { isExported } from "../state/exported";
import { Below, useChoice, useChosenRow } from "../state/linked";
import { Timeline } from "../timeline/timeline";
import { formatCount, formatDuration, formatPlural, formatShare } from "../format";
import type { OperatorRow, OperatorTable, OperatorsView, Report } from "../report";
import { CloseButton } from "../widgets/close-button";
import { describePeriod } from "../text";
import { Fetched, Nothing } from "../widgets/fetched";
import { Prose } from "../widgets/prose";
import { Segments } from "../widgets/segments";
import { type Column, SortableTable } from "../widgets/sortable-table";

interface Props {
  report: Report;
  captureId: string;
}

export function OperatorsPage({ report, captureId }: Props): JSX.Element {
  return (
    <Fetched of={captureId} fetch={(signal) => fetchView(captureId, "operators", signal)}>
      {(view) =>
        view === null ? (
          <Nothing title="No operators in this profile">
            <p>
              {report.framework === "pytorch" ? (
                <>
                  PyTorch records them with <code>activities=[ProfilerActivity.CPU, …]</code>.
                </>
              ) : (
                "XLA runs whole programs on the device; their operations are on the Kernels page."
              )}
            </p>
          </Nothing>
        ) : (
          <OperatorsOf view={view} report={report} captureId={captureId} />
        )
      }
    </Fetched>
  );
}

type Grouping = "operator" | "module" | "line" | "call site";

/** The tables that the profile allows, by what they group by. */
export function groupings(view: OperatorsView): [Grouping, OperatorTable][] {
  const tables: [Grouping, OperatorTable | null | undefined][] = [
    ["operator", view.by_operator],
    ["module", view.by_module],
    ["line", view.by_line],
    ["call site", view.by_call_site],
  ];
  return tables.flatMap(([name, table]) => (table ? [[name, table]] : []));
}

/** One sentence: the operator with the most own time. */
export function describeOperators({ by_operator: table }: OperatorsView, steps: number): string {
  const [first] = [...table.rows].sort((a, b) => b.self_ns - a.self_ns);
  if (!first) return "No operators";
  const each = formatDuration(first.self_ns / steps);
  return `${first.operator} takes ${formatShare(first.share)} of the operators’ own time: ${each} in ${formatPlural(
    Math.round(first.calls / steps),
    "call",
  )}${steps > 1 ? " per step" : ""}`;
}

function OperatorsOf({ view, report, captureId }: Props & { view: OperatorsView }): JSX.Element {
  const steps = Math.max(report.overview.steps, 1);
  const tables = groupings(view);
  // A line and its operators say most about what to change.
  const names = tables.map(([name]) => name);
  const [grouping, setGrouping] = useChoice("by", names, names.includes("call site") ? "call site" : "operator");
  const [, table] = tables.find(([name]) => name === grouping) ?? ["operator", view.by_operator];
  const [chosen, setChosen] = useChosenRow("by.chosen", table.rows, ({ operator, module, line }) =>
    [operator, module, line].filter((name) => name !== null).join(" "),
  );
  const columns = useMemo(() => operatorColumns(table, grouping, steps, report, setChosen), [table, grouping, steps]);
  return (
    <>
      <header class="headline">
        <h1>
          <Prose text={describeOperators(view, steps)} />
        </h1>
        <p class="subline">
          <span>
            {formatCount(Math.round(view.calls / steps))} calls {describePeriod(report)}
          </span>
          <span>{formatDuration(view.self_ns / steps)} own time on all threads</span>
          {view.waiting_ns > 0 && <span>{formatDuration(view.waiting_ns / steps)} waiting for the device</span>}
          {!view.by_line && <span>no source lines recorded</span>}
          {!view.by_module && <span>no modules recorded</span>}
        </p>
      </header>
      {chosen && (
        <section class="card" aria-labelledby="operator-events">
          <div class="card-head">
            <h2 id="operator-events">{chosen.operator ?? chosen.module ?? chosen.line ?? "Operators"}: the call with the most own time</h2>
            <CloseButton label="Close the timeline" onClick={() => setChosen(undefined)} />
          </div>
          <Below name="by.chosen">
            <Timeline
              captureId={captureId}
              worker={report.reference_worker}
              focus={{ startNs: chosen.longest_start_ns, durationNs: chosen.longest_ns, name: chosen.operator ?? "" }}
              fill={0.2}
            />
          </Below>
        </section>
      )}
      <section aria-labelledby="operators-table">
        <div class="section-head">
          <h2 id="operators-table">Operators</h2>
          {tables.length > 1 && (
            <Segments
              label="Group operators by"
              options={tables.map(([name]) => [name, name === "call site" ? "By operator and line" : `By ${name}`])}
              chosen={grouping}
              choose={setGrouping}
            />
          )}
        </div>
        <SortableTable
          key={grouping}
          caption="Operators"
          columns={columns}
          rows={table.rows}
          sort={{ key: "self", isDescending: true }}
          truncated={table.truncated}
          filterLabel="Find operators"
          chosen={chosen}
        />
        <p class="muted table-note">
          <em>Own time</em>: time on the host without the operators inside, on all threads. Operators of the input pipeline
          are on the Input page.
        </p>
      </section>
    </>
  );
}

function operatorColumns(
  table: OperatorTable,
  grouping: Grouping,
  steps: number,
  report: Report,
  choose: (row: OperatorRow) => void,
): Column<OperatorRow>[] {
  const per = report.steps.used > 0 ? " per step" : "";
  const names: Record<string, Column<OperatorRow>> = {
    operator: { key: "operator", label: "Operator", unit: null, value: ({ operator }) => operator, isLongName: true },
    module: { key: "module", label: "Module", unit: null, value: ({ module }) => module, isLongName: true },
    line: { key: "line", label: "Line", unit: null, value: ({ line }) => line, isLongName: true },
  };
  const [first = "operator", ...others] = grouping === "call site" ? ["operator", "line", "module"] : [grouping];
  const named = names[first] as Column<OperatorRow>;
  const lead = { ...named, value: (row: OperatorRow) => named.value(row) ?? `no ${first}` };
  const columns: Column<OperatorRow>[] = [
    isExported ? lead : { ...lead, open: choose },
    { key: "share", label: "Share", unit: "share", value: ({ share }) => share },
    { key: "self", label: `Own time${per}`, unit: "ns", value: ({ self_ns: ns }) => ns / steps },
    {
      key: "waiting",
      label: `Waiting${per}`,
      unit: "ns",
      value: ({ waiting_ns: ns }) => (table.rows.some((row) => row.waiting_ns > 0) ? ns / steps : null),
    },
    { key: "calls", label: `Calls${per}`, unit: "count", value: ({ calls }) => calls / steps },
    ...others.map((name) => names[name] as Column<OperatorRow>),
    { key: "each", label: "Mean own time", unit: "ns", value: ({ self_ns: ns, calls }) => (calls > 0 ? ns / calls : null) },
    { key: "device", label: `Device time${per}`, unit: "ns", value: ({ device_ns: ns }) => (ns === null ? null : ns / steps) },
    { key: "longest", label: "Longest call", unit: "ns", value: ({ longest_ns: ns }) => ns },
  ];
  // Leave out columns that are empty for all operators.
  return columns.filter(({ value }) => table.rows.some((row) => value(row) !== null));
}
