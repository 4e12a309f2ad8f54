// What communication costs in each parallel dimension: data, tensor, pipeline and so on.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { Below, useChosenRow } from "../state/linked";
import { formatCell, formatDuration, formatPlural, formatShare } from "../format";
import type { DimensionInfo, GroupInfo, NextDoublingInfo, ParallelismView, Report } from "../report";
import { describePeriod, rankNames } from "../text";
import { LongName } from "../widgets/name";
import { Prose } from "../widgets/prose";
import { type Column, SortableTable } from "../widgets/sortable-table";
import { Head } from "../widgets/head";

const NAMES: Record<string, string> = {
  data: "Data parallel",
  sharded: "Sharded data parallel",
  tensor: "Tensor parallel",
  context: "Context parallel",
  pipeline: "Pipeline parallel",
  expert: "Expert parallel",
  embedding: "Embedding tables",
  unknown: "Other process groups",
};

/** The name of a dimension; groups of unknown purpose are told apart by what the program calls them. */
export function dimensionName({ dimension, groups }: DimensionInfo): string {
  const name = NAMES[dimension] ?? dimension;
  const [group] = groups;
  if (dimension !== "unknown" || !group) return name;
  if (group.description === "default_pg") return "Default process group";
  return group.description ?? (group.name ? `Process group ${group.name}` : name);
}

/** How many ranks a dimension has: `8`, or `2–8` where its groups differ. */
export function describeRanks(groups: GroupInfo[]): string | null {
  const sizes = groups.flatMap(({ size }) => (size === null ? [] : [size]));
  if (sizes.length === 0) return null;
  const [least, most] = [Math.min(...sizes), Math.max(...sizes)];
  return least === most ? `${most}` : `${least}–${most}`;
}

/** One sentence: the dimension that costs most. */
export function describeParallelism({ dimensions, exposed_ns: exposedNs }: ParallelismView, report: Pick<Report, "overview">): string {
  const [first] = dimensions;
  if (!first) return "No communication";
  const steps = Math.max(report.overview.steps, 1);
  const window = report.overview.window_ns;
  if (exposedNs <= 0) return "Compute hides all communication";
  const cost = `${formatDuration(first.cost.exposed_ns / steps)} of exposed communication`;
  const share = window > 0 ? ` (${formatShare(first.cost.exposed_ns / window)} of the step)` : "";
  return `${dimensionName(first)}: ${cost}${share}`;
}

export function Parallelism({ view, report, isPart }: { view: ParallelismView; report: Report; isPart: boolean }): JSX.Element {
  const steps = Math.max(report.overview.steps, 1);
  const [linked, setChosen] = useChosenRow("dimension", view.dimensions, dimensionName);
  const chosen = linked ?? view.dimensions[0];
  const columns = useMemo(() => dimensionColumns(view, report, setChosen), [view, report]);
  const per = describePeriod(report);
  const world = report.world_size ?? report.workers.length;
  return (
    <>
      <Head
        isPart={isPart}
        title={describeParallelism(view, report)}
        facts={[
          world > 1 && formatPlural(world, "rank"),
          `${formatDuration(view.exposed_ns / steps)} exposed communication ${per}`,
          view.elsewhere_ns > 0 && `${formatDuration(view.elsewhere_ns / steps)} of it launched outside the analyzed steps`,
          view.dimensions.some(({ is_transfer_known: isKnown }) => !isKnown) && "times include waiting for other ranks",
        ]}
      />
      <section aria-labelledby="dimensions">
        <div class="section-head">
          <h2 id="dimensions">Parallel dimensions</h2>
          <span class="muted">{per}</span>
        </div>
        <SortableTable
          caption="Parallel dimensions"
          columns={columns}
          rows={view.dimensions}
          sort={{ key: "exposed", isDescending: true }}
          truncated={view.truncated}
          chosen={chosen}
        />
        <p class="muted table-note">
          <em>Exposed</em>: no compute runs meanwhile. Where two dimensions communicate at once, both count.{" "}
          <em>Bus bandwidth</em>: bytes on the wire divided by time, as in nccl-tests; with “≥”, the time includes waiting for
          other ranks. A dimension is known by the code around a collective, the name of its process group or its kernel, never
          by the size of the group.
        </p>
      </section>
      {chosen && (
        <Below name="dimension">
          <Details dimension={chosen} report={report} />
        </Below>
      )}
      {report.overview.next_doubling && <NextDoubling doubled={report.overview.next_doubling} />}
    </>
  );
}

/** `31.2 ms to 45.0 ms`, or one of them where they are equal as shown. */
export function describeRange(low: string, high: string): string {
  return low === high ? low : `${low} to ${high}`;
}

function NextDoubling({ doubled }: { doubled: NextDoublingInfo }): JSX.Element {
  const step = describeRange(formatDuration(doubled.low_step_ns), formatDuration(doubled.high_step_ns));
  const efficiency = describeRange(formatShare(doubled.low_efficiency), formatShare(doubled.high_efficiency));
  return (
    <section aria-labelledby="next-doubling">
      <div class="section-head">
        <h2 id="next-doubling">On twice the devices</h2>
        <span class="muted">a model, not a measurement</span>
      </div>
      <p>
        With {formatPlural(2 * doubled.ranks, "rank")}, a step would take {step}: {efficiency} of today’s throughput per device.
      </p>
      <ul class="muted">
        {doubled.assumptions.map((assumption) => (
          <li key={assumption}>{assumption}</li>
        ))}
      </ul>
    </section>
  );
}

function Details({ dimension, report }: { dimension: DimensionInfo; report: Report }): JSX.Element {
  const steps = Math.max(report.overview.steps, 1);
  const per = report.steps.used > 0 ? " per step" : "";
  const operations: Column<DimensionInfo["cost"]>[] = [
    { key: "operation", label: "Operation", unit: null, value: ({ operation }) => operation },
    ...costColumns((cost: DimensionInfo["cost"]) => cost, dimension.is_transfer_known, steps, per),
  ];
  return (
    <>
      <section aria-labelledby="operations">
        <div class="section-head">
          <h2 id="operations">{dimensionName(dimension)}: operations</h2>
        </div>
        <SortableTable
          key={dimensionName(dimension)}
          caption="Operations"
          columns={operations.filter(({ value }) => dimension.operations.some((row) => value(row) !== null))}
          rows={dimension.operations}
          sort={{ key: "exposed", isDescending: true }}
        />
        {dimension.evidence && (
          <p class="muted table-note">
            Recognized: <Prose text={dimension.evidence} />.
          </p>
        )}
        {dimension.groups.some(({ name, description, ranks }) => name ?? description ?? ranks) && (
          <Groups dimension={dimension} />
        )}
      </section>
      {dimension.rank_exposed_ns && <ByRank dimension={dimension} report={report} exposed={dimension.rank_exposed_ns} />}
    </>
  );
}

function Groups({ dimension }: { dimension: DimensionInfo }): JSX.Element {
  return (
    <p class="muted table-note">
      {formatPlural(dimension.groups.length + dimension.groups_truncated, "process group")}:{" "}
      {dimension.groups.map(({ name, description, ranks, size }, index) => (
        <span key={index}>
          {index > 0 && ", "}
          {description ?? (name === null ? "unnamed" : `group ${name}`)}
          {ranks !== null ? (
            <>
              {" "}
              of ranks <LongName name={ranks} />
            </>
          ) : (
            size !== null && ` of ${formatPlural(size, "rank")}`
          )}
        </span>
      ))}
      {dimension.groups_truncated > 0 && " …"}
    </p>
  );
}

function ByRank({
  dimension,
  report,
  exposed,
}: {
  dimension: DimensionInfo;
  report: Report;
  exposed: (number | null)[];
}): JSX.Element {
  const names = useMemo(() => rankNames(report), [report]);
  const sent = dimension.rank_sent_bytes;
  const isUneven = sent !== null && new Set(sent).size > 1;
  const isPipeline = dimension.dimension === "pipeline";
  const columns: Column<number>[] = [
    {
      key: "rank",
      label: isPipeline ? "Stage on" : "Rank",
      unit: null,
      value: (worker) => report.workers[worker]?.rank ?? names[worker] ?? worker,
      render: (worker) => names[worker],
    },
    { key: "exposed", label: isPipeline ? "Bubble and transfer" : "Exposed", unit: "ns", value: (worker) => exposed[worker] ?? null },
    ...(dimension.rank_waiting_ns
      ? [{ key: "waiting", label: "Waiting", unit: "ns", value: (worker: number) => dimension.rank_waiting_ns?.[worker] ?? null }]
      : []),
    ...(isUneven ? [{ key: "sent", label: "Bytes sent", unit: "bytes", value: (worker: number) => sent[worker] ?? null }] : []),
  ];
  return (
    <section aria-labelledby="dimension-ranks">
      <div class="section-head">
        <h2 id="dimension-ranks">{dimensionName(dimension)}: all ranks</h2>
        <span class="muted">{describePeriod(report)}</span>
      </div>
      <SortableTable
        key={dimensionName(dimension)}
        caption="Ranks of the dimension"
        columns={columns}
        rows={[...names.keys()]}
        sort={{ key: "rank", isDescending: false }}
        filterLabel="Find a rank or host"
      />
    </section>
  );
}

const rate = (value: number | null, isTransferKnown: boolean): string =>
  value === null ? "unknown" : `${isTransferKnown ? "" : "≥ "}${formatCell(value, "bytes/s")}`;

function costColumns<Row>(
  costOf: (row: Row) => DimensionInfo["cost"],
  isTransferKnown: boolean | ((row: Row) => boolean),
  steps: number,
  per: string,
): Column<Row>[] {
  const isKnown = (row: Row): boolean => (typeof isTransferKnown === "function" ? isTransferKnown(row) : isTransferKnown);
  return [
    { key: "exposed", label: "Exposed", unit: "ns", value: (row) => costOf(row).exposed_ns / steps },
    { key: "hidden", label: "Hidden", unit: "ns", value: (row) => costOf(row).hidden_ns / steps },
    { key: "count", label: `Collectives${per}`, unit: "count", value: (row) => costOf(row).count / steps },
    { key: "bytes", label: `Bytes${per}`, unit: "bytes", value: (row) => costOf(row).bytes_per_step },
    {
      key: "algorithm",
      label: "Algorithm bandwidth",
      unit: "bytes/s",
      value: (row) => costOf(row).algorithm_bytes_per_s,
      render: (row) => rate(costOf(row).algorithm_bytes_per_s, isKnown(row)),
    },
    {
      key: "bus",
      label: "Bus bandwidth",
      unit: "bytes/s",
      value: (row) => costOf(row).bus_bytes_per_s,
      render: (row) => rate(costOf(row).bus_bytes_per_s, isKnown(row)),
    },
  ];
}

function dimensionColumns(
  view: ParallelismView,
  report: Report,
  choose: (row: DimensionInfo) => void,
): Column<DimensionInfo>[] {
  const steps = Math.max(report.overview.steps, 1);
  const window = report.overview.window_ns;
  const [exposed, ...others] = costColumns<DimensionInfo>(
    ({ cost }) => cost,
    ({ is_transfer_known: isKnown }) => isKnown,
    steps,
    "",
  ) as [Column<DimensionInfo>, ...Column<DimensionInfo>[]];
  const columns: Column<DimensionInfo>[] = [
    { key: "dimension", label: "Dimension", unit: null, value: dimensionName, isLongName: true, open: choose },
    { key: "ranks", label: "Ranks", unit: null, value: ({ groups }) => describeRanks(groups) },
    exposed,
    { key: "share", label: "Share of step", unit: "share", value: ({ cost }) => (window > 0 ? cost.exposed_ns / window : null) },
    ...others,
    { key: "link", label: "Link", unit: "bytes/s", value: ({ link_bytes_per_s: link }) => link },
  ];
  // Leave out columns that are empty for all dimensions.
  return columns.filter(({ value }) => view.dimensions.some((row) => value(row) !== null));
}
