// The work of the device: its kernels, how close each is to the limits of the device, and which module they are of.
import type { JSX } from "preact";
import { useCallback, useMemo } from "preact/hooks";
import { fetchView } from "../state/api";
import { isExported } from "../state/exported";
import { Below, useChoice, useChosenRow } from "../state/linked";
import { asWords } from "../text";
import { PlotFigure } from "../charts/plot-figure";
import { boundOf, drawRoofline, drawnPoints, placedPoints } from "../charts/roofline-chart";
import { formatCount, formatPlural, formatShare } from "../format";
import type { KernelGroup, KernelPoint, KernelSummary, KernelsView, Report } from "../report";
import { type Column, SortableTable } from "../widgets/sortable-table";
import { LongName } from "../widgets/name";
import { Segments } from "../widgets/segments";
import { Fetched } from "../widgets/fetched";
import { Head } from "../widgets/head";
import { Legend } from "../widgets/legend";
import { ChosenRow, longestOf } from "./chosen-row";
import { CallsTree, LOOK_NAMES, TREE_LOOKS } from "./host/calls";

interface Props {
  report: Report;
  captureId: string;
}

export function DevicePage({ report, captureId }: Props): JSX.Element {
  return (
    <Fetched of={captureId} fetch={(signal) => fetchView(captureId, "kernels", signal)}>
      {(view) =>
        view === null ? (
          <KernelTotals report={report} />
        ) : (
          <>
            <Kernels view={view} report={report} captureId={captureId} />
            {report.available_views?.includes("calls") && <ByModule captureId={captureId} />}
          </>
        )
      }
    </Fetched>
  );
}

/** The kernels as a tree of modules or ranges, operators and kernels. */
function ByModule({ captureId }: { captureId: string }): JSX.Element {
  const [look, setLook] = useChoice("tree.as", TREE_LOOKS, "tree");
  return (
    <section class="card" aria-labelledby="device-tree">
      <Fetched of={captureId} fetch={(signal) => fetchView(captureId, "calls", signal)}>
        {(view) =>
          view?.kernels && (
            <>
              <div class="card-head">
                <h2 id="device-tree">{view.shows_modules ? "By module or range, operator and kernel" : "By operator and kernel"}</h2>
                <p class="muted">all work of these steps, also where it runs after them, with collectives and copies; the table counts what runs during them</p>
                <Segments label="Show the tree as" options={LOOK_NAMES} chosen={look} choose={setLook} />
              </div>
              <Below name="tree">
                <CallsTree tree={view.kernels} steps={view.steps} label="Kernels by module or range" look={look} />
              </Below>
            </>
          )
        }
      </Fetched>
    </section>
  );
}

/** `4,096 × 1,024 × 512`, or `8 × (2 × 3 × 4)` with a batch size. */
export function describeProduct(product: number[] | null): string | null {
  if (product === null) return null;
  const [batch = 1, ...sizes] = product;
  const text = sizes.map((size) => formatCount(size)).join(" × ");
  return batch > 1 ? `${formatCount(batch)} × (${text})` : text;
}

/** `bf16, tensor cores`. */
function describeFormat({ format, tensor_cores: used }: KernelPoint): string | null {
  const cores = used === null ? null : used ? "tensor cores" : "no tensor cores";
  return [format, cores].filter((part) => part !== null).join(", ") || null;
}

/** What takes how much of the kernel time, and how often it runs. */
const amountColumns = (steps: number | null): Column<Pick<KernelGroup, "share" | "total_ns" | "count">>[] => [
  { key: "share", label: "Share", unit: "share", value: ({ share }) => share },
  { key: "time", label: steps === null ? "Time" : "Per step", unit: "ns", value: ({ total_ns: ns }) => ns / (steps ?? 1) },
  { key: "count", label: "Count", unit: "count", value: ({ count }) => count },
  { key: "each", label: "Mean", unit: "ns", value: ({ total_ns: ns, count }) => ns / count },
];

function kernelColumns(
  view: KernelsView,
  steps: number | null,
  choose: ((point: KernelPoint) => void) | undefined,
): Column<KernelPoint>[] {
  const columns: Column<KernelPoint>[] = [
    { key: "name", label: "Kernel", unit: null, value: ({ name }) => name, isLongName: true, ...(choose && { open: choose }) },
    ...amountColumns(steps),
    { key: "achieved", label: "Of achievable rate", unit: "share", value: ({ achieved_share: share }) => share },
    {
      key: "bound",
      label: "Bound by",
      unit: null,
      value: ({ bound }) => bound,
      render: ({ bound }) =>
        bound === null ? (
          "–"
        ) : (
          <span class="bound">
            <span class="swatch" style={{ background: boundOf(bound)[0] }} aria-hidden="true" />
            {bound}
          </span>
        ),
    },
    { key: "operator", label: "Operator", unit: null, value: ({ operator }) => operator },
    { key: "format", label: "Format", unit: null, value: describeFormat },
    { key: "size", label: "Size", unit: null, value: ({ product }) => describeProduct(product) },
    { key: "rate", label: "Compute", unit: "flop/s", value: ({ flop_per_s: rate }) => rate },
    { key: "traffic", label: "Traffic", unit: "bytes/s", value: ({ bytes_per_s: rate }) => rate },
    { key: "occupancy", label: "Occupancy", unit: "share", value: ({ occupancy_share: share }) => share },
  ];
  // Leave out columns that are empty for all kernels.
  return columns.filter(({ value }) => view.points.some((point) => value(point) !== null));
}

type Grouping = "kernel" | "family" | "operator" | "module";

/** The groups that the profile allows: one group would say nothing. */
export function kernelGroups(view: KernelsView): [Exclude<Grouping, "kernel">, KernelGroup[]][] {
  const groups: [Exclude<Grouping, "kernel">, KernelGroup[]][] = [
    ["family", view.families],
    ["operator", view.operators],
    ["module", view.modules],
  ];
  return groups.filter(([, rows]) => rows.length > 1);
}

/** One sentence: the family with the most time. */
export function describeKernels(view: KernelsView): string {
  const [first] = view.families;
  if (!first) return "No kernel ran in the used steps";
  const names = view.families.reduce((sum, { kernels }) => sum + kernels, 0);
  const name = familyName(first.name);
  const title = `${name.charAt(0).toUpperCase()}${name.slice(1)}`;
  if (view.families.length === 1) return `${title}: all of the kernel time, in ${formatPlural(names, "kernel")}`;
  const kernels = `${formatCount(first.kernels)} of ${formatPlural(names, "kernel")}`;
  return `${title}: ${formatShare(first.share)} of kernel time, in ${kernels}`;
}

const FAMILIES: Record<string, string> = {
  other: "other kernels",
  matmul: "matrix products",
  convolution: "convolutions",
  elementwise: "elementwise kernels",
  reduction: "reductions",
  embedding: "embeddings",
  copy: "copies",
  sort: "sorting",
  random: "random numbers",
  layout: "layout changes",
  collective: "collectives",
  optimizer: "optimizer kernels",
};

export const familyName = (family: string | null): string =>
  family === null ? "unknown" : (FAMILIES[family] ?? family.replaceAll("_", " "));

const groupColumns = (grouping: string, steps: number | null): Column<KernelGroup>[] => [
  {
    key: grouping,
    label: asWords(grouping),
    unit: null,
    value: ({ name }) => (grouping === "family" ? asWords(familyName(name)) : (name ?? `no ${grouping}`)),
    isLongName: true,
  },
  ...amountColumns(steps),
  { key: "kernels", label: "Kernels", unit: "count", value: ({ kernels }) => kernels },
];

function Kernels({ view, report, captureId }: Props & { view: KernelsView }): JSX.Element {
  const steps = report.steps.used > 0 ? report.steps.used : null;
  const groups = kernelGroups(view);
  const [grouping, setGrouping] = useChoice<Grouping>("by", ["kernel", ...groups.map(([name]) => name)], "kernel");
  const [chosen, setChosen] = useChosenRow("kernel", view.points, ({ name, operator, product }) =>
    [name, operator, product].filter((part) => part !== null).join(" "),
  );
  const group = groups.find(([name]) => name === grouping)?.[1];
  const columns = useMemo(() => kernelColumns(view, steps, isExported ? undefined : setChosen), [view, steps]);
  return (
    <>
      <Head
        title={describeKernels(view)}
        facts={[view.device || "unknown device", `FLOPs known for ${formatShare(view.known_share)} of kernel time`]}
      />
      <Roofline view={view} isPyTorch={report.framework === "pytorch"} choose={isExported ? undefined : setChosen} />
      {chosen && (
        <Below name="kernel">
          <ChosenRow
            report={report}
            captureId={captureId}
            title={<>Longest run of <LongName name={chosen.name} /></>}
            {...longestOf(chosen, chosen.name)}
            close={() => setChosen(undefined)}
          />
        </Below>
      )}
      <section aria-labelledby="kernels-table">
        <div class="section-head">
          <h2 id="kernels-table">All kernels</h2>
          {groups.length > 0 && (
            <Segments<Grouping>
              label="Group kernels by"
              options={[["kernel", "By kernel"], ...groups.map(([name]): [Grouping, string] => [name, `By ${name}`])]}
              chosen={grouping}
              choose={setGrouping}
            />
          )}
          <span class="muted">{!group && "one row per kernel, operator and problem size"}</span>
        </div>
        {group ? (
          <SortableTable
            key={grouping}
            caption={`Kernels by ${grouping}`}
            columns={groupColumns(grouping, steps)}
            rows={group}
            sort={{ key: "share", isDescending: true }}
            filterLabel={`Find by ${grouping}`}
          />
        ) : (
          <SortableTable
            caption="All kernels"
            columns={columns}
            rows={view.points}
            sort={{ key: "share", isDescending: true }}
            truncated={view.truncated}
            filterLabel="Find kernels"
            chosen={chosen}
          />
        )}
        {!group && view.points.some(({ achieved_share: share }) => share !== null) && (
          <p class="muted table-note">
            <em>Of achievable rate</em>: what large, well-shaped kernels reach on this device, which is less than its peak.
            Unknown where a rate would exceed the peak: the kernel finds data in caches, or does less than is known.
          </p>
        )}
      </section>
    </>
  );
}

/** Kernels with less of the kernel time say nothing about the program. */
const WORTH_A_CHART = 0.05;

interface RooflineProps {
  view: KernelsView;
  isPyTorch: boolean;
  choose: ((point: KernelPoint) => void) | undefined;
}

function Roofline({ view, isPyTorch, choose }: RooflineProps): JSX.Element {
  const draw = useCallback((width: number) => drawRoofline(view, width), [view]);
  const placed = placedPoints(view);
  const hidden = placed.length - drawnPoints(view).length;
  const bounds = [...new Set(drawnPoints(view).map(({ bound }) => bound))];
  const placedShare = placed.reduce((sum, { share }) => sum + share, 0);
  return (
    <section class="card" aria-labelledby="roofline">
      <div class="card-head">
        <h2 id="roofline">Roofline</h2>
        {placedShare >= WORTH_A_CHART && <p class="muted">larger dots take more time; lines: peak rates of the device</p>}
      </div>
      {placedShare < WORTH_A_CHART ? (
        <p class="muted">
          {view.roofs.length === 0
            ? "The peak rates of this device are unknown, so there is no roofline."
            : `FLOPs are known for ${formatShare(view.known_share)} of kernel time, too little for a roofline.`}
          {view.roofs.length > 0 && isPyTorch && (
            <>
              {" "}
              Record with <code>record_shapes=True</code>.
            </>
          )}
        </p>
      ) : (
        <>
          <PlotFigure
            label={`Roofline of ${formatPlural(placed.length, "kernel")}; the table below has the same numbers.`}
            draw={draw}
            {...(choose && { onPick: (point: unknown) => choose(point as KernelPoint) })}
          />
          <Legend entries={bounds.map(boundOf)} />
          {hidden > 0 && (
            <p class="muted table-note">
              Not shown: {formatPlural(hidden, "kernel")} with low rates and next to no time.
            </p>
          )}
        </>
      )}
    </section>
  );
}

/** Kernels of a profile that has only totals. */
function KernelTotals({ report: { overview } }: { report: Report }): JSX.Element {
  const columns: Column<KernelSummary>[] = [
    { key: "name", label: "Kernel", unit: null, value: ({ name }) => name, isLongName: true },
    ...amountColumns(null),
    { key: "family", label: "Family", unit: null, value: ({ family }) => family },
  ];
  return (
    <>
      <Head
        title={formatPlural(overview.kernels.length + overview.kernels_truncated, "kernel")}
        facts={["The file has only totals per kernel, so there is no roofline"]}
      />
      <SortableTable
        caption="All kernels"
        columns={columns}
        rows={overview.kernels}
        sort={{ key: "share", isDescending: true }}
        truncated={overview.kernels_truncated}
        filterLabel="Find kernels"
      />
    </>
  );
}
