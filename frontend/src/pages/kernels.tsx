// The kernels: which take the most time, and how close each is to the limits of the device.
import type { JSX } from "preact";
import { useCallback } from "preact/hooks";
import { fetchView } from "../state/api";
import { PlotFigure } from "../charts/plot-figure";
import { boundOf, drawRoofline, drawnPoints, placedPoints } from "../charts/roofline-chart";
import { formatCount, formatPlural, formatShare } from "../format";
import type { KernelPoint, KernelSummary, KernelsView, Report } from "../report";
import { type Column, SortableTable } from "../widgets/sortable-table";
import { Fetched, Nothing } from "../widgets/fetched";

interface Props {
  report: Report;
  captureId: string;
}

export function KernelsPage({ report, captureId }: Props): JSX.Element {
  return (
    <Fetched of={captureId} fetch={(signal) => fetchView(captureId, "kernels", signal)}>
      {(view) => {
        if (view !== null) return <KernelsOf view={view} report={report} />;
        if (report.overview.kernels.length > 0) return <KernelTotals report={report} />;
        return (
          <Nothing title="No kernels in this profile">
            <p>
              {report.workers[report.reference_worker]?.device == null
                ? "The program ran on the CPU, which has operators but no kernels. The findings in the report cover those."
                : "The profile names a device but has no kernels. The notes in the report say why."}
            </p>
          </Nothing>
        );
      }}
    </Fetched>
  );
}

/** `4,096 × 1,024 × 512`, or `8 × (2 × 3 × 4)` with a batch size. */
export function describeProduct(product: number[] | null): string | null {
  if (product === null) return null;
  const [batch = 1, ...sizes] = product;
  const text = sizes.map((size) => formatCount(size)).join(" × ");
  return batch > 1 ? `${formatCount(batch)} × (${text})` : text;
}

const yes = (value: boolean | null): string | null => (value === null ? null : value ? "yes" : "no");

function kernelColumns(view: KernelsView, steps: number): Column<KernelPoint>[] {
  const columns: Column<KernelPoint>[] = [
    {
      key: "name",
      label: "Kernel",
      unit: null,
      value: ({ name }) => name,
      isLongName: true,
    },
    { key: "share", label: "Share", unit: "share", value: ({ share }) => share },
    { key: "time", label: "Per step", unit: "ns", value: ({ total_ns: ns }) => ns / steps },
    { key: "count", label: "Count", unit: "count", value: ({ count }) => count },
    { key: "each", label: "Mean", unit: "ns", value: ({ total_ns: ns, count }) => ns / count },
    { key: "achieved", label: "Of roofline", unit: "share", value: ({ achieved_share: share }) => share },
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
    { key: "family", label: "Family", unit: null, value: ({ family }) => family },
    { key: "format", label: "Format", unit: null, value: ({ format }) => format },
    { key: "tensor", label: "Tensor cores", unit: null, value: ({ tensor_cores: used }) => yes(used) },
    { key: "size", label: "Size", unit: null, value: ({ product }) => describeProduct(product) },
    { key: "rate", label: "Compute", unit: "flop/s", value: ({ flop_per_s: rate }) => rate },
    { key: "traffic", label: "Traffic", unit: "bytes/s", value: ({ bytes_per_s: rate }) => rate },
    { key: "occupancy", label: "Occupancy", unit: "share", value: ({ occupancy_share: share }) => share },
  ];
  // Leave out columns that are empty for all kernels.
  return columns.filter(({ value }) => view.points.some((point) => value(point) !== null));
}

function KernelsOf({ view, report }: { view: KernelsView; report: Report }): JSX.Element {
  const steps = Math.max(report.overview.steps, 1);
  const [first] = view.points;
  const count = view.points.length + view.truncated;
  return (
    <>
      <header class="headline">
        <h1>
          {first
            ? `${formatPlural(count, "kernel")}; the top one takes ${formatShare(first.share)} of kernel time`
            : "No kernel ran in the used steps"}
        </h1>
        <p class="subline">
          <span>{view.device || "unknown device"}</span>
          <span>FLOPs known for {formatShare(view.known_share)} of kernel time</span>
        </p>
      </header>
      <Roofline view={view} />
      <section aria-labelledby="kernels-table">
        <div class="section-head">
          <h2 id="kernels-table">All kernels</h2>
          <span class="muted">one row per kernel, operator and problem size</span>
        </div>
        <SortableTable
          caption="All kernels"
          columns={kernelColumns(view, steps)}
          rows={view.points}
          sort={{ key: "share", isDescending: true }}
          truncated={view.truncated}
          filterLabel="Find kernels"
        />
        {view.points.some(({ achieved_share: share }) => share !== null) && (
          <p class="muted table-note">
            <em>Of roofline</em>: the achieved rate as a share of what the roofline allows.
            {view.points.some(({ achieved_share: share }) => (share ?? 0) > 1) &&
              " Above 100 %, a kernel needs less than assumed: it finds data in caches or uses a cheaper algorithm."}
          </p>
        )}
      </section>
    </>
  );
}

function Roofline({ view }: { view: KernelsView }): JSX.Element {
  const draw = useCallback((width: number) => drawRoofline(view, width), [view]);
  const placed = placedPoints(view);
  const hidden = placed.length - drawnPoints(view).length;
  const bounds = [...new Set(placed.map(({ bound }) => bound))];
  return (
    <section class="card" aria-labelledby="roofline">
      <div class="card-head">
        <h2 id="roofline">Roofline</h2>
        {placed.length > 0 && <p class="muted">larger dots take more time; lines: peak rates of the device</p>}
      </div>
      {placed.length === 0 ? (
        <p class="muted">
          {view.roofs.length === 0
            ? "The peak rates of this device are unknown, so there is no roofline."
            : "The FLOPs of the kernels are unknown. In PyTorch, record with record_shapes=True."}
        </p>
      ) : (
        <>
          <PlotFigure
            label={`Roofline of ${formatPlural(placed.length, "kernel")}; the table below has the same numbers.`}
            draw={draw}
          />
          <ul class="legend-row">
            {bounds.map((bound) => (
              <li key={bound ?? ""}>
                <span class="swatch" style={{ background: boundOf(bound)[0] }} aria-hidden="true" /> {boundOf(bound)[1]}
              </li>
            ))}
          </ul>
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
    {
      key: "name",
      label: "Kernel",
      unit: null,
      value: ({ name }) => name,
      isLongName: true,
    },
    { key: "share", label: "Share", unit: "share", value: ({ share }) => share },
    { key: "time", label: "Total", unit: "ns", value: ({ total_ns: ns }) => ns },
    { key: "count", label: "Count", unit: "count", value: ({ count }) => count },
    { key: "family", label: "Family", unit: null, value: ({ family }) => family },
  ];
  return (
    <>
      <header class="headline">
        <h1>{formatPlural(overview.kernels.length + overview.kernels_truncated, "kernel")}</h1>
        <p class="subline">
          <span>The file has only totals per kernel, so there is no roofline</span>
        </p>
      </header>
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
