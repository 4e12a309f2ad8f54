// All ranks: where the time of their steps goes, and who waits for whom.
import type { JSX } from "preact";
import { useCallback, useMemo } from "preact/hooks";
import { fetchView } from "../state/api";
import { useFlag } from "../state/linked";
import { PlotFigure } from "../charts/plot-figure";
import { median } from "../charts/median";
import { type HeatCell, describeHeat, drawCritical, drawHeat, heatCells, stepCells, strongest } from "../charts/ranks-charts";
import { formatChange, formatCount, formatDuration, formatPlural } from "../format";
import type { RanksView, Report } from "../report";
import { causeName, describePeriod, rankNames } from "../text";
import { type Column, SortableTable } from "../widgets/sortable-table";
import { Fetched } from "../widgets/fetched";
import { Head } from "../widgets/head";
import { Segments } from "../widgets/segments";
import { Parallelism } from "./parallelism";

interface Props {
  report: Report;
  captureId: string;
}

export function RanksPage({ report, captureId }: Props): JSX.Element {
  return (
    <Fetched
      of={captureId}
      fetch={(signal) => Promise.all([fetchView(captureId, "ranks", signal), fetchView(captureId, "parallelism", signal)])}
    >
      {([ranks, parallelism]) => (
        <>
          {ranks && <RanksOf view={ranks} report={report} />}
          {parallelism && <Parallelism view={parallelism} report={report} isPart={ranks !== null} />}
        </>
      )}
    </Fetched>
  );
}

/** Collectives take about this share of a step to start, so shorter waits mean nothing. */
const NEGLIGIBLE_WAIT_SHARE = 0.02;

/** A cause that takes less of the step on every rank gets no row: its cells would be blank. */
const WORTH_A_ROW = 0.002;

/** The causes to show, as indices. */
export function worthRows(view: RanksView): number[] {
  const leastNs = WORTH_A_ROW * median(view.step_ns);
  return [...view.causes.keys()].filter((row) => (view.total_ns[row] ?? []).some((ns) => ns >= leastNs));
}

/** Whether any rank waits for another long enough to matter. */
const hasWaits = (view: RanksView): boolean =>
  Math.max(0, ...view.pairs_ns.flat()) > NEGLIGIBLE_WAIT_SHARE * median(view.step_ns);

/** A rank that causes at least this share of all waiting is named, even if it is not late in every step. */
const DOMINANT_SHARE = 2 / 3;

/** One sentence: which rank is late and what that costs. `missing` is how many ranks have no trace. */
export function describeLateness(view: RanksView, names: string[], per: string, missing = 0): string {
  if (view.late_ns === null) return "Stragglers are unknown";
  const lateNs = (rank: number | undefined): number => (rank === undefined ? 0 : (view.late_ns?.[rank] ?? 0));
  const [worst, second, ...rest] = [...view.late].sort((a, b) => lateNs(b) - lateNs(a));
  if (worst === undefined) {
    const [waiting, step] = [median(view.waiting_ns ?? []), median(view.step_ns)];
    if (waiting <= NEGLIGIBLE_WAIT_SHARE * step) {
      return missing > 0 ? `Of the ${formatCount(names.length)} ranks that are here, none is late` : "No stragglers";
    }
    const most = Math.max(...view.late_ns);
    const all = view.late_ns.reduce((sum, ns) => sum + ns, 0);
    return most >= DOMINANT_SHARE * all
      ? `Other ranks wait mostly for ${names[view.late_ns.indexOf(most)]}: ${formatDuration(most)} ${per}, but not in every step`
      : `Ranks wait ${formatDuration(waiting)} ${per}, with no single straggler`;
  }
  const also = second === undefined ? "" : ` and ${formatDuration(lateNs(second))} for ${names[second]}`;
  const more = rest.length > 0 ? `; ${formatPlural(rest.length, "more rank")} ${rest.length === 1 ? "is" : "are"} late` : "";
  return `Other ranks wait ${formatDuration(lateNs(worst))} ${per} for ${names[worst]}${also}${more}`;
}

function RanksOf({ view, report }: { view: RanksView; report: Report }): JSX.Element {
  const names = useMemo(() => rankNames(report), [report]);
  const per = describePeriod(report);
  const [isDifference, setDifference] = useFlag("difference", view.late.length > 0);
  const missing = Math.max((report.world_size ?? 0) - names.length, 0);
  const ranks = [...names.keys()];
  const cells = useMemo(() => heatCells(view, names, causeName, isDifference, worthRows(view)), [view, names, isDifference]);
  const fullNs = strongest(cells);
  const drawTimes = useCallback(
    (width: number) => {
      const rows = worthRows(view).map((row) => causeName(view.causes[row] ?? ""));
      return drawHeat(cells, rows, ranks, names, width, isDifference, fullNs);
    },
    [cells, fullNs],
  );
  const columns = useMemo(() => rankColumns(view, names, report), [view, names, report]);
  return (
    <>
      <Head
        title={describeLateness(view, names, per, missing)}
        facts={[
          missing > 0 ? `${formatCount(names.length)} of ${formatPlural(names.length + missing, "rank")}` : formatPlural(names.length, "rank"),
          new Set(view.critical).size === 1 &&
            `${names[view.critical[0] ?? 0]} is critical in ${view.critical.length > 1 ? "every step" : "the step"}`,
          view.collectives > 0 && `${formatPlural(view.collectives, "collective")} matched across ranks`,
        ]}
      />
      <section class="card" aria-labelledby="heat">
        <div class="card-head">
          <h2 id="heat">Time {per} by rank and cause</h2>
          <Segments
            label="Meaning of the colors"
            options={[
              ["time", "Time"],
              ["difference", "vs. median rank"],
            ]}
            chosen={isDifference ? "difference" : "time"}
            choose={(name) => setDifference(name === "difference")}
          />
        </div>
        <PlotFigure label={describeHeat(view)} draw={drawTimes} />
        {isDifference ? (
          <p class="muted heat-key" aria-hidden="true">
            {formatChange(-fullNs)} <i class="heat-both" /> {formatChange(fullNs)} vs. median rank
          </p>
        ) : (
          <HeatKey fullNs={fullNs} />
        )}
      </section>
      {hasWaits(view) && <Pairs view={view} names={names} />}
      {hasWaits(view) && <ByStep view={view} names={names} />}
      <section aria-labelledby="ranks-table">
        <div class="section-head">
          <h2 id="ranks-table">All ranks</h2>
          <span class="muted">{per}</span>
        </div>
        <SortableTable
          caption="All ranks"
          columns={columns}
          rows={ranks}
          sort={{ key: view.late.length > 0 ? "late" : "rank", isDescending: view.late.length > 0 }}
          filterLabel="Find a rank or host"
        />
      </section>
    </>
  );
}

/** The color scale of a heat map. */
const HeatKey = ({ fullNs }: { fullNs: number }): JSX.Element => (
  <p class="muted heat-key" aria-hidden="true">
    0 <i /> {formatDuration(fullNs)}
  </p>
);

/** The most rows of the waiting matrix; the ranks that cause the most waiting come first. */
const MAX_ROWS = 24;

function Pairs({ view, names }: { view: RanksView; names: string[] }): JSX.Element {
  const stragglers = view.waited_for.slice(0, MAX_ROWS);
  const cells = useMemo(
    () =>
      stragglers.flatMap((late, row) =>
        (view.pairs_ns[row] ?? []).map(
          (ns, x): HeatCell => ({
            x,
            y: `for ${names[late]}`,
            ns,
            title: x === late ? `${names[x]} itself` : `${names[x]} waits ${formatDuration(ns)}\nfor ${names[late]}`,
          }),
        ),
      ),
    [view, names],
  );
  // Keep negligible waits pale.
  const fullNs = strongest(cells, NEGLIGIBLE_WAIT_SHARE * median(view.step_ns));
  const draw = useCallback(
    (width: number) => {
      const rows = stragglers.map((late) => `for ${names[late]}`);
      return drawHeat(cells, rows, [...names.keys()], names, width, false, fullNs);
    },
    [cells, fullNs],
  );
  const hidden = view.waited_for.length - MAX_ROWS;
  return (
    <section class="card" aria-labelledby="pairs">
      <div class="card-head">
        <h2 id="pairs">Who waits for whom</h2>
        <p class="muted">each column is a waiting rank</p>
      </div>
      <PlotFigure label="How long each rank waits for the ranks that are last in collectives." draw={draw} />
      <HeatKey fullNs={fullNs} />
      {hidden > 0 && <p class="muted">Not shown: {formatPlural(hidden, "rank")} that cause less waiting.</p>}
    </section>
  );
}

/** More rows than this would fill more than a screen. */
const MAX_STEPS = 32;

/** How long each rank waits in each step; of many steps, only which rank is the last one. */
function ByStep({ view, names }: { view: RanksView; names: string[] }): JSX.Element | null {
  const cells = useMemo(() => stepCells(view, names), [view, names]);
  const fullNs = strongest(cells, NEGLIGIBLE_WAIT_SHARE * median(view.step_ns));
  const isMap = view.step_waiting_ns !== null && view.step_index.length <= MAX_STEPS;
  const draw = useCallback(
    (width: number) => {
      if (!isMap) return drawCritical(view, names);
      const rows = view.step_index.map((step) => `step ${step}`);
      return drawHeat(cells, rows, [...names.keys()], names, width, false, fullNs);
    },
    [cells, fullNs],
  );
  if (view.step_index.length < 2) return null;
  return (
    <section class="card" aria-labelledby="by-step">
      <div class="card-head">
        <h2 id="by-step">{isMap ? "How long each rank waits in each step" : "Critical rank of each step"}</h2>
        <p class="muted">the rank that waits least holds up the others</p>
      </div>
      <PlotFigure label={describeCritical(view, names)} draw={draw} />
      {isMap && <HeatKey fullNs={fullNs} />}
    </section>
  );
}

function describeCritical(view: RanksView, names: string[]): string {
  const counts = new Map<number, number>();
  for (const worker of view.critical) counts.set(worker, (counts.get(worker) ?? 0) + 1);
  const parts = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 3);
  return `Critical rank of each step: ${parts
    .map(([worker, count]) => `${names[worker]} in ${formatPlural(count, "step")}`)
    .join(", ")}.`;
}

function rankColumns(view: RanksView, names: string[], report: Report): Column<number>[] {
  const of = (values: number[] | null) => (worker: number) => values?.[worker] ?? null;
  const critical = names.map((_, worker) => view.critical.filter((critical) => critical === worker).length);
  const hosts = new Set(report.workers.map(({ host }) => host));
  const columns: Column<number>[] = [
    {
      key: "rank",
      label: "Rank",
      unit: null,
      value: (worker) => report.workers[worker]?.rank ?? names[worker] ?? worker,
      render: (worker) => (
        <>
          {names[worker]} {view.late.includes(worker) && <span class="badge badge-late">late</span>}
        </>
      ),
    },
    ...(hosts.size > 1
      ? [{ key: "host", label: "Host", unit: null, value: (worker: number) => report.workers[worker]?.host ?? "" }]
      : []),
    { key: "step", label: "Step", unit: "ns", value: of(view.step_ns) },
    { key: "late", label: "Delay caused", unit: "ns", value: of(view.late_ns) },
    { key: "waiting", label: "Waiting", unit: "ns", value: of(view.waiting_ns) },
    { key: "times", label: "Times late", unit: "count", value: of(view.times_late) },
    { key: "critical", label: "Critical steps", unit: "count", value: of(critical) },
    { key: "skew", label: "Clock offset", unit: "ns", value: of(view.clock_skew_ns) },
  ];
  // Leave out columns of zeros.
  const isShown = ({ unit, value }: Column<number>): boolean =>
    unit === null || names.some((_, worker) => (value(worker) ?? 0) !== 0);
  return columns.filter(isShown);
}
