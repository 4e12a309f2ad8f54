// The operators as a table: which take the most time of their own, and which module and line they come from.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { isExported } from "../../state/exported";
import { Below, useChoice, useChosenRow } from "../../state/linked";
import { formatCount, formatDuration } from "../../format";
import type { OperatorRow, OperatorTable, OperatorsView, Report } from "../../report";
import { describePeriod } from "../../text";
import { Segments } from "../../widgets/segments";
import { ChosenRow, longestOf } from "../chosen-row";
import { type Column, SortableTable } from "../../widgets/sortable-table";

interface Props {
  view: OperatorsView;
  report: Report;
  captureId: string;
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

/** Where operators launch work, its time says more than that of launching it. */
const hasDeviceTime = ({ rows }: OperatorTable): boolean => rows.some(({ device_ns: ns }) => (ns ?? 0) > 0);

export function operatorFacts(view: OperatorsView, report: Report): string[] {
  const steps = Math.max(report.overview.steps, 1);
  return [
    `${formatCount(Math.round(view.calls / steps))} operators ${describePeriod(report)}, ${formatDuration(view.self_ns / steps)} of their own on all threads`,
    ...(view.by_line ? [] : ["no source lines recorded"]),
    ...(view.by_module ? [] : ["no modules recorded"]),
  ];
}

export function Operators({ view, report, captureId }: Props): JSX.Element {
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
      {chosen && (
        <Below name="by.chosen">
          <ChosenRow
            report={report}
            captureId={captureId}
            title={`${chosen.operator ?? chosen.module ?? chosen.line ?? "Operators"}: the call with the most own time`}
            {...longestOf(chosen, chosen.operator ?? "")}
            close={() => setChosen(undefined)}
          />
        </Below>
      )}
      <div>
        {tables.length > 1 && (
          <div class="section-head">
            <Segments
              label="Group operators by"
              options={tables.map(([name]) => [name, name === "call site" ? "By operator and line" : `By ${name}`])}
              chosen={grouping}
              choose={setGrouping}
            />
          </div>
        )}
        <SortableTable
          key={grouping}
          caption="Operators"
          columns={columns}
          rows={table.rows}
          sort={{ key: hasDeviceTime(table) ? "device" : "self", isDescending: true }}
          truncated={table.truncated}
          filterLabel="Find operators"
          chosen={chosen}
        />
        <p class="muted table-note">
          <em>Own time</em>: time on the host without the operators inside, on all threads. Without operators of the input
          pipeline.
        </p>
      </div>
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
  const device: Column<OperatorRow> = {
    key: "device",
    label: `Device time${per}`,
    unit: "ns",
    value: ({ device_ns: ns }) => (ns === null ? null : ns / steps),
  };
  const columns: Column<OperatorRow>[] = [
    isExported ? lead : { ...lead, open: choose },
    ...(hasDeviceTime(table) ? [device] : []),
    { key: "share", label: "Share of own time", unit: "share", value: ({ share }) => share },
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
    { key: "longest", label: "Longest call", unit: "ns", value: ({ longest_ns: ns }) => ns },
  ];
  // Leave out columns that are empty for all operators.
  return columns.filter(({ value }) => table.rows.some((row) => value(row) !== null));
}
