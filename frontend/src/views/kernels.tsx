// The kernels: which take the time, and how close each comes to what the device can do.
import type { JSX } from "preact";
import { useCallback } from "preact/hooks";
import { fetchView } from "../api";
import { PlotFigure } from "../charts/plot-figure";
import { boundOf, drawRoofline, drawnPoints, placedPoints } from "../charts/roofline-chart";
import { formatCount, formatPlural, formatShare } from "../format";
import type { KernelPoint, KernelSummary, KernelsView, Report } from "../report";
import { type Column, DataTable, LongName } from "./data-table";
import { Fetched, Nothing } from "./fetched";

interface Props {
  report: Report;
  captureId: string;
}

export function Kernels({ report, captureId }: Props): JSX.Element {
  return (
    <Fetched of={captureId} fetch={(signal) => fetchView(captureId, "kernels", signal)}>
      {(view) => {
        if (view !== null) return <KernelsOf view={view} report={report} />;
        if (report.overview.kernels.length > 0) return <Summed report={report} />;
        return (
          <Nothing title="No kernels in this profile">
            <p>
              {report.workers[report.reference_worker]?.device == null
                ? "The program ran on the CPU, which has operators and no kernels: the report’s findings tell of those."
                : "The profile has a device but no kernel of it. The notes of the report say what keeps kernels from being recorded."}
            </p>
          </Nothing>
        );
      }}
    </Fetched>
  );
}

/** `4096 × 1024 × 512`, with the batch before it. */
export function describeProduct(product: number[] | null): string | null {
  if (product === null) return null;
  const [batch = 1, ...sizes] = product;
  const text = sizes.map((size) => formatCount(size)).join(" × ");
  return batch > 1 ? `${formatCount(batch)} of ${text}` : text;
}

const yes = (value: boolean | null): string | null => (value === null ? null : value ? "yes" : "no");

function kernelColumns(view: KernelsView, steps: number): Column<KernelPoint>[] {
  const columns: Column<KernelPoint>[] = [
    {
      key: "name",
      label: "Kernel",
      unit: null,
      value: ({ name }) => name,
      render: ({ name }) => <LongName name={name} />,
    },
    { key: "operator", label: "Operator", unit: null, value: ({ operator }) => operator },
    { key: "share", label: "Share", unit: "share", value: ({ share }) => share },
    { key: "time", label: "Per step", unit: "ns", value: ({ total_ns: ns }) => ns / steps },
    { key: "count", label: "Runs", unit: "count", value: ({ count }) => count },
    { key: "each", label: "Each", unit: "ns", value: ({ total_ns: ns, count }) => ns / count },
    { key: "achieved", label: "Of roof", unit: "share", value: ({ achieved_share: share }) => share },
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
    { key: "family", label: "Family", unit: null, value: ({ family }) => family },
    { key: "format", label: "Format", unit: null, value: ({ format }) => format },
    { key: "tensor", label: "Tensor cores", unit: null, value: ({ tensor_cores: used }) => yes(used) },
    { key: "size", label: "Size", unit: null, value: ({ product }) => describeProduct(product) },
    { key: "rate", label: "Compute", unit: "flop/s", value: ({ flop_per_s: rate }) => rate },
    { key: "traffic", label: "Traffic", unit: "bytes/s", value: ({ bytes_per_s: rate }) => rate },
    { key: "occupancy", label: "Occupancy", unit: "share", value: ({ occupancy_share: share }) => share },
  ];
  // What no kernel of this profile has takes no room.
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
            ? `${formatPlural(count, "kernel")}; the costliest takes ${formatShare(first.share)} of their time`
            : "No kernel ran in the used steps"}
        </h1>
        <p class="subline">
          <span>{view.device || "unknown device"}</span>
          <span>the work of {formatShare(view.known_share)} of kernel time is known</span>
        </p>
      </header>
      <Roofline view={view} />
      <section aria-labelledby="kernels-table">
        <div class="section-head">
          <h2 id="kernels-table">All kernels</h2>
          <span class="muted">one row for each kernel, operator and size of the work</span>
        </div>
        <DataTable
          caption="All kernels"
          columns={kernelColumns(view, steps)}
          rows={view.points}
          sort={{ key: "share", isDescending: true }}
          truncated={view.truncated}
          filterLabel="Find kernels"
        />
        {view.points.some(({ achieved_share: share }) => share !== null) && (
          <p class="muted table-note">
            <em>Of roof</em>: the speed, of what the roofline allows work of this kind.
            {view.points.some(({ achieved_share: share }) => (share ?? 0) > 1) &&
              " Above 100 %, a kernel does with less than its work is counted as: it finds data in caches, or multiplies by a cheaper algorithm."}
          </p>
        )}
      </section>
    </>
  );
}

function Roofline({ view }: { view: KernelsView }): JSX.Element {
  const draw = useCallback((width: number) => drawRoofline(view, width), [view]);
  const placed = placedPoints(view);
  const left = placed.length - drawnPoints(view).length;
  const bounds = [...new Set(placed.map(({ bound }) => bound))];
  return (
    <section class="card" aria-labelledby="roofline">
      <div class="card-head">
        <h2 id="roofline">Roofline</h2>
        {placed.length > 0 && <p class="muted">larger dots take more time; lines are the device’s peaks</p>}
      </div>
      {placed.length === 0 ? (
        <p class="muted">
          {view.roofs.length === 0
            ? "The peaks of this device are unknown, and nothing is drawn on a guess."
            : "The work of the kernels is unknown. In PyTorch, record with record_shapes=True: their sizes tell it."}
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
          {left > 0 && (
            <p class="muted table-note">
              {formatPlural(left, "kernel")} with next to no time {left === 1 ? "lies" : "lie"} far below the picture.
            </p>
          )}
        </>
      )}
    </section>
  );
}

/** Kernels of which the recorder kept sums alone. */
function Summed({ report: { overview } }: { report: Report }): JSX.Element {
  const columns: Column<KernelSummary>[] = [
    {
      key: "name",
      label: "Kernel",
      unit: null,
      value: ({ name }) => name,
      render: ({ name }) => <LongName name={name} />,
    },
    { key: "family", label: "Family", unit: null, value: ({ family }) => family },
    { key: "share", label: "Of kernel time", unit: "share", value: ({ share }) => share },
    { key: "time", label: "In all", unit: "ns", value: ({ total_ns: ns }) => ns },
    { key: "count", label: "Runs", unit: "count", value: ({ count }) => count },
  ];
  return (
    <>
      <header class="headline">
        <h1>{formatPlural(overview.kernels.length + overview.kernels_truncated, "kernel")}</h1>
        <p class="subline">
          <span>The file has sums over all that was recorded, so there is no roofline</span>
        </p>
      </header>
      <DataTable
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
