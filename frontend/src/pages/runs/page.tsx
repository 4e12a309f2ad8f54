// All captures of the log folder, grouped and the newest first, with the change to begin with in each.
import type { JSX } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { analyze, stopAnalyses, waiting } from "../../state/analyses";
import type { Capture, CaptureList } from "../../state/answers";
import { formatCount, formatDuration, formatPlural } from "../../format";
import { useFlags, useLinked } from "../../state/linked";
import { loadMarks, marks, pin, pinned } from "../../state/marks";
import { captureLink, pageLink } from "../../state/store";
import { nameOf, repeatedRuns } from "../../state/capture-name";
import { CopyButton } from "../../widgets/code";
import { toCsv } from "../../widgets/csv";
import { Find } from "../../widgets/find";
import { Head } from "../../widgets/head";
import { Name } from "../../widgets/name";
import { PageLink } from "../../widgets/page-link";
import { sortRows } from "../../widgets/sortable-table";
import { columnsOf } from "./columns";
import { RecordNow } from "./record-now";
import { type Line, groupCaptures, newestFirst, searchCaptures } from "./groups";
import { RunsTable, type TableLine } from "./table";

/** With more captures, only the newest group is open at first. */
const MOST_OPEN = 60;
/** Shorter tables have no search field. */
const MIN_SEARCHABLE = 8;

export function RunsPage({ list }: { list: CaptureList }): JSX.Element {
  const { captures, scan } = list;
  const runs = new Set(captures.map(({ run }) => run)).size;
  const analyzed = captures.filter(({ status }) => status === "done").length;
  const baseline = captures.find(({ id }) => id === pinned.value);
  useEffect(() => {
    const controller = new AbortController();
    void loadMarks(baseline?.id ?? null, controller.signal);
    return () => controller.abort();
  }, [baseline?.id, analyzed]);
  return (
    <>
      <Head
        title={formatPlural(runs, "run")}
        facts={[
          <code>{scan.root}</code>,
          captures.length > runs && formatPlural(captures.length, "capture"),
          scan.is_scanning && <span role="status">still scanning</span>,
        ]}
      />
      <section aria-label="Runs" class="runs">
        <RecordNow programs={list.programs ?? 0} />
        <Analyses captures={captures} />
        {baseline && <Baseline capture={baseline} captures={captures} />}
        <Table captures={captures} baseline={baseline} />
      </section>
      <p class="muted">
        <PageLink to={pageLink("about")}>About</PageLink>: which files were read, and what is checked.
      </p>
    </>
  );
}

/** What all runs are compared with. */
function Baseline({ capture, captures }: { capture: Capture; captures: Capture[] }): JSX.Element {
  const slower = Object.values(marks.value).filter(({ verdict }) => verdict === "slower").length;
  return (
    <p class="baseline">
      <span>
        <strong>Baseline:</strong>{" "}
        <PageLink to={captureLink(capture.id)}>
          <Name of={nameOf(capture, repeatedRuns(captures))} />
        </PageLink>
        {capture.step_time_ns !== null && <>, {formatDuration(capture.step_time_ns)} per step</>}
        {slower > 0 && <span class="muted">; slower: {formatPlural(slower, "capture")}</span>}
      </span>
      <button type="button" onClick={() => pin(null)}>
        Unpin
      </button>
    </p>
  );
}

function Table({ captures, baseline }: { captures: Capture[]; baseline: Capture | undefined }): JSX.Element {
  const [query, setQuery] = useLinked("find");
  const [order, setOrder] = useLinked("order");
  const isOpen = useFlags("group");
  const columns = useMemo(
    () => columnsOf(captures, baseline, marks.value),
    [captures, baseline, marks.value],
  );
  const found = useMemo(() => searchCaptures(newestFirst(captures), query), [captures, query]);
  const column = columns.find(({ key }) => key === order.replace(/^-/, ""));
  const ordered = useMemo(
    () => (column ? sortRows(found, column.order ?? column.value, order.startsWith("-")) : found),
    [found, column, order],
  );
  const grouped = useMemo(() => (column ? null : groupCaptures(ordered)), [ordered, column]);
  const isEachOpen = captures.length <= MOST_OPEN || query.trim() !== "";
  const lines = grouped
    ? grouped.flatMap((line, place) => opened(line, isOpen, isEachOpen || place === 0))
    : ordered.map((capture): TableLine => ({ kind: "capture", capture, isInGroup: false }));
  const sortBy = (key: string): void => {
    const isNumber = columns.find((other) => other.key === key)?.unit !== null || key === "recorded";
    const isAgain = column?.key === key;
    setOrder(`${(isAgain ? !order.startsWith("-") : isNumber) ? "-" : ""}${key}`);
  };
  const hasGroups = grouped?.some(({ kind }) => kind === "group") ?? true;
  return (
    <div class="data-table">
      <div class="table-tools">
        {captures.length > MIN_SEARCHABLE && (
          <Find label="Find a run" query={query} setQuery={setQuery} found={found.length} of={captures.length} />
        )}
        <span class="button-row">
          {column && (
            <button type="button" onClick={() => setOrder("")}>
              {hasGroups ? "Group, newest first" : "Newest first"}
            </button>
          )}
          <CopyButton label="Copy as CSV" text={() => toCsv(columns, ordered)} />
        </span>
      </div>
      <RunsTable
        columns={columns}
        lines={lines}
        sort={column ? { key: column.key, isDescending: order.startsWith("-") } : null}
        sortBy={sortBy}
        marks={marks.value}
      />
    </div>
  );
}

type Flags = ReturnType<typeof useFlags>;

/** A line of the table, with the captures of a group that is open. */
function opened(line: Line, [isOpen, setOpen]: Flags, isOpenByDefault: boolean): TableLine[] {
  if (line.kind === "capture") return [{ ...line, isInGroup: false }];
  const { group } = line;
  const isShown = isOpen(group.name, isOpenByDefault);
  const toggle = (): void => setOpen(group.name, !isShown, isOpenByDefault);
  return [
    { kind: "group", group, isOpen: isShown, toggle },
    ...(isShown ? group.captures.map((capture): TableLine => ({ kind: "capture", capture, isInGroup: true })) : []),
  ];
}

/** How many captures are analyzed, and the buttons for the others. Stays, so that the table does. */
function Analyses({ captures }: { captures: Capture[] }): JSX.Element | null {
  const left = captures.filter(({ status }) => status !== "done" && status !== "failed");
  const wasNeeded = useRef(false);
  wasNeeded.current ||= left.length > 0;
  if (!wasNeeded.current) return null;
  const done = captures.length - left.length;
  const isWorking = waiting.value.length > 0;
  return (
    <div class="analyses">
      <p class="muted" role="status">
        {left.length > 0 && `${formatCount(done)} of `}
        {formatPlural(captures.length, "capture")} analyzed
      </p>
      <span class="button-row">
        {left.length > 0 && isWorking && (
          <button type="button" onClick={stopAnalyses}>
            Stop
          </button>
        )}
        {left.length > 0 && !isWorking && (
          <button type="button" onClick={() => analyze(newestFirst(left).map(({ id }) => id))}>
            Analyze {left.length === captures.length ? "all" : `the other ${formatCount(left.length)}`}
          </button>
        )}
      </span>
      <span class="progress" aria-hidden="true">
        <span style={{ width: `${(100 * done) / captures.length}%` }} />
      </span>
    </div>
  );
}
