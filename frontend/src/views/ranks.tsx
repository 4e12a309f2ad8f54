// All ranks: where their steps' time goes, and who waits for whom.
import type { JSX } from "preact";
import { useCallback, useMemo, useState } from "preact/hooks";
import { fetchView } from "../api";
import { PlotFigure } from "../charts/plot-figure";
import { type HeatCell, describeHeat, drawCritical, drawHeat, formatChange, heatCells, strongest } from "../charts/ranks-charts";
import { formatCount, formatDuration, formatPlural } from "../format";
import type { RanksView, Report } from "../report";
import { causeNames } from "../text";
import { type Column, DataTable } from "./data-table";
import { Fetched, Nothing } from "./fetched";

interface Props {
  report: Report;
  captureId: string;
}

export function Ranks({ report, captureId }: Props): JSX.Element {
  if (report.workers.length < 2) {
    return (
      <Nothing title="One rank, so nothing to compare it with">
        <p>
          {(report.world_size ?? 1) > 1
            ? `The run has ${formatCount(report.world_size)} ranks; the log folder holds the file of one of them. Put the files of all ranks into one folder, and this view shows where each one’s time goes and who waits for whom.`
            : "Record several ranks or hosts into one folder, and this view shows where each one’s time goes and who waits for whom."}
        </p>
      </Nothing>
    );
  }
  return (
    <Fetched of={captureId} fetch={(signal) => fetchView(captureId, "ranks", signal)}>
      {(view) =>
        view === null ? (
          <Nothing title="The ranks cannot be compared">
            <p>Their files have no steps in common.</p>
          </Nothing>
        ) : (
          <RanksOf view={view} report={report} />
        )
      }
    </Fetched>
  );
}

/** What the ranks are called: by number, else by host. */
export const rankNames = ({ workers }: Report): string[] =>
  workers.map(({ rank, host }, index) => (rank !== null ? `rank ${rank}` : host || `worker ${index}`));

/** Waiting below this share of a step is what collectives take to begin. */
const WORTH_TELLING = 0.02;

/** Of all lateness: who makes so much of it is named, even if it comes and goes. */
const MOSTLY_ONE = 2 / 3;

function middle(values: number[] | null): number {
  const sorted = [...(values ?? [])].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? 0;
}

/** One sentence: who is late and what that costs. */
export function describeLateness(view: RanksView, names: string[]): string {
  if (view.late_ns === null) return "Which rank comes late is not known";
  const [worst] = [...view.late].sort((a, b) => (view.late_ns?.[b] ?? 0) - (view.late_ns?.[a] ?? 0));
  if (worst === undefined) {
    const [waiting, step] = [middle(view.waiting_ns), middle(view.step_ns)];
    if (waiting <= WORTH_TELLING * step) return "No rank comes late by more than chance";
    const most = Math.max(...view.late_ns);
    const all = view.late_ns.reduce((sum, ns) => sum + ns, 0);
    return most >= MOSTLY_ONE * all
      ? `The others wait most for ${names[view.late_ns.indexOf(most)]}, ${formatDuration(most)} a step, but not in every step`
      : `Ranks wait ${formatDuration(waiting)} a step, and not for one alone`;
  }
  const cost = formatDuration(view.late_ns[worst]);
  const others = view.late.length - 1;
  const also = others > 0 ? `, and ${formatPlural(others, "other rank")} too` : "";
  return `The others wait ${cost} a step for ${names[worst]}${also}`;
}

function RanksOf({ view, report }: { view: RanksView; report: Report }): JSX.Element {
  const names = useMemo(() => rankNames(report), [report]);
  const [isDifference, setDifference] = useState(view.late.length > 0);
  const labels = useMemo(() => causeNames(report), [report]);
  const ranks = [...names.keys()];
  const cells = useMemo(() => heatCells(view, names, labels, isDifference), [view, names, labels, isDifference]);
  const fullNs = strongest(cells);
  const drawTimes = useCallback(
    (width: number) => {
      const rows = view.causes.map((cause) => labels(cause));
      return drawHeat(cells, rows, ranks, names, width, isDifference, fullNs);
    },
    [cells, fullNs],
  );
  const columns = useMemo(() => rankColumns(view, names, report), [view, names, report]);
  const drawSteps = useCallback(() => drawCritical(view, names), [view, names]);
  return (
    <>
      <header class="headline">
        <h1>{describeLateness(view, names)}</h1>
        <p class="subline">
          <span>{formatPlural(names.length, "rank")}</span>
          {view.collectives > 0 && <span>{formatPlural(view.collectives, "collective")} matched across ranks</span>}
        </p>
      </header>
      <section class="card" aria-labelledby="heat">
        <div class="card-head">
          <h2 id="heat">Where each rank’s step goes</h2>
          <div class="segments" role="group" aria-label="What the color means">
            <button type="button" aria-pressed={!isDifference} onClick={() => setDifference(false)}>
              Time per step
            </button>
            <button type="button" aria-pressed={isDifference} onClick={() => setDifference(true)}>
              Against the middle
            </button>
          </div>
        </div>
        <PlotFigure label={describeHeat(view)} draw={drawTimes} />
        {isDifference ? (
          <p class="muted heat-key" aria-hidden="true">
            {formatChange(-fullNs)} <i class="heat-both" /> {formatChange(fullNs)} than the middle rank
          </p>
        ) : (
          <HeatKey fullNs={fullNs} />
        )}
      </section>
      {view.pairs_ns.length > 0 && <Pairs view={view} names={names} />}
      {view.step_index.length > 0 && (
        <section class="card" aria-labelledby="critical">
          <div class="card-head">
            <h2 id="critical">The rank that each step waits for</h2>
            <p class="muted">the one that waits least for the others in that step</p>
          </div>
          <PlotFigure label={describeCritical(view, names)} draw={drawSteps} />
        </section>
      )}
      <section aria-labelledby="ranks-table">
        <div class="section-head">
          <h2 id="ranks-table">All ranks</h2>
          <span class="muted">per step</span>
        </div>
        <DataTable
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

/** What the colors of a map stand for. */
const HeatKey = ({ fullNs }: { fullNs: number }): JSX.Element => (
  <p class="muted heat-key" aria-hidden="true">
    0 <i /> {formatDuration(fullNs)} a step
  </p>
);

/** How many columns the matrix of waiting shows at most: those waited for most come first. */
const MAX_ROWS = 24;

function Pairs({ view, names }: { view: RanksView; names: string[] }): JSX.Element {
  const waited = view.waited_for.slice(0, MAX_ROWS);
  const cells = useMemo(
    () =>
      waited.flatMap((late, column) =>
        (view.pairs_ns[column] ?? []).map(
          (ns, x): HeatCell => ({
            x,
            y: `for ${names[late]}`,
            ns,
            title: x === late ? `${names[x]} itself` : `${names[x]} waits ${formatDuration(ns)} a step\nfor ${names[late]}`,
          }),
        ),
      ),
    [view, names],
  );
  // Waits that are not worth telling stay pale.
  const fullNs = strongest(cells, WORTH_TELLING * middle(view.step_ns));
  const draw = useCallback(
    (width: number) => {
      const rows = waited.map((late) => `for ${names[late]}`);
      return drawHeat(cells, rows, [...names.keys()], names, width, false, fullNs);
    },
    [cells, fullNs],
  );
  const hidden = view.waited_for.length - MAX_ROWS;
  return (
    <section class="card" aria-labelledby="pairs">
      <div class="card-head">
        <h2 id="pairs">Who waits for whom</h2>
        <p class="muted">each column is a rank that waits</p>
      </div>
      <PlotFigure label="How long each rank waits for those that come last in collectives." draw={draw} />
      <HeatKey fullNs={fullNs} />
      {hidden > 0 && <p class="muted">{formatPlural(hidden, "rank")} waited for less are not drawn.</p>}
    </section>
  );
}

function describeCritical(view: RanksView, names: string[]): string {
  const counts = new Map<number, number>();
  for (const worker of view.critical) counts.set(worker, (counts.get(worker) ?? 0) + 1);
  const parts = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 3);
  return `The rank that each step waits for: ${parts
    .map(([worker, count]) => `${names[worker]} in ${formatPlural(count, "step")}`)
    .join(", ")}.`;
}

function rankColumns(view: RanksView, names: string[], report: Report): Column<number>[] {
  const of = (values: number[] | null) => (worker: number) => values?.[worker] ?? null;
  const critical = names.map((_, worker) => view.critical.filter((one) => one === worker).length);
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
    { key: "late", label: "Waited for", unit: "ns", value: of(view.late_ns) },
    { key: "waiting", label: "Waits", unit: "ns", value: of(view.waiting_ns) },
    { key: "times", label: "Times late", unit: "count", value: of(view.times_late) },
    { key: "critical", label: "Critical in steps", unit: "count", value: of(critical) },
    { key: "skew", label: "Clock ahead", unit: "ns", value: of(view.clock_skew_ns) },
  ];
  // A column of zeros takes room and says nothing.
  const isTold = ({ unit, value }: Column<number>): boolean =>
    unit === null || names.some((_, worker) => (value(worker) ?? 0) !== 0);
  return columns.filter(isTold);
}
