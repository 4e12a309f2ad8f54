// All captures of the log folder in a table, with the change to begin with in each.
import type { JSX } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { Capture, CaptureList, Severity as SeverityName } from "../state/answers";
import { analyze, beginAnalyses, stopAnalyses, waiting } from "../state/analyses";
import { formatPlural } from "../format";
import { captureLink } from "../state/store";
import { frameworkName, sessionName } from "../text";
import { Severity } from "../findings/severity";
import { nameOf, repeatedRuns } from "./capture-name";
import { Name } from "../widgets/name";
import { PageLink } from "../widgets/page-link";
import { Prose } from "../widgets/prose";
import { type Column, SortableTable } from "../widgets/sortable-table";

const ORDER: Record<SeverityName, number> = { high: 1, medium: 2, low: 3 };

const runColumn = (repeated: Set<string>): Column<Capture> => ({
  key: "run",
  label: "Run",
  unit: null,
  value: (capture) => nameOf(capture, repeated),
  render: ({ id, run, session, is_synthetic: isSynthetic }) => (
    <>
      <PageLink to={captureLink(id)}>
        <Name of={run || "."} />
      </PageLink>
      {isSynthetic && <> <span class="badge">synthetic</span></>}
      {repeated.has(run) && <span class="muted session">{sessionName(session)}</span>}
    </>
  ),
});

const COLUMNS: Column<Capture>[] = [
  { key: "step", label: "Step", unit: "ns", value: ({ step_time_ns: step }) => step },
  {
    key: "change",
    label: "First change",
    unit: null,
    value: ({ first_change: title, headline }) => title ?? headline,
    render: (capture) => <FirstChange capture={capture} />,
  },
  { key: "saves", label: "Saves", unit: "share", value: ({ saves_share: share }) => share },
  {
    key: "severity",
    label: "Severity",
    unit: null,
    value: ({ severity }) => severity,
    order: ({ severity }) => severity && ORDER[severity],
    render: ({ severity }) => (severity ? <Severity severity={severity} /> : "–"),
  },
  {
    key: "framework",
    label: "Framework",
    unit: null,
    value: ({ framework }) => (framework === "unknown" ? null : frameworkName(framework)),
  },
  { key: "device", label: "Device", unit: null, value: ({ device }) => device },
  {
    key: "recorded",
    label: "Recorded",
    unit: null,
    value: ({ recorded }) => sessionName(recorded) || null,
    render: ({ recorded }) => <span class="when">{toMinutes(sessionName(recorded)) || "–"}</span>,
  },
];

/** A time without its seconds, which only sorting needs. */
const toMinutes = (time: string): string => time.replace(/(:\d\d):\d\d$/, "$1");

function FirstChange({ capture }: { capture: Capture }): JSX.Element {
  const { id, status, first_change: title, headline, finding, failure } = capture;
  if (status === "failed") return <span class="muted">Failed: {failure}</span>;
  if (title) {
    return (
      <PageLink class="quiet-link first-change" to={{ ...captureLink(id), finding: finding ?? "" }}>
        <Prose text={title} />
      </PageLink>
    );
  }
  if (status === "done") return <span class="muted">{headline}</span>;
  const place = waiting.value.indexOf(id);
  if (status === "running" || place === 0) return <span class="muted">Analyzing…</span>;
  if (status === "queued" || place > 0) return <span class="muted">Waiting</span>;
  return (
    <button type="button" class="link-button" onClick={() => analyze([id])}>
      Analyze
    </button>
  );
}

export function RunsPage({ list }: { list: CaptureList }): JSX.Element {
  const { captures, scan } = list;
  useEffect(beginAnalyses, []);
  const columns = useMemo(() => [runColumn(repeatedRuns(captures)), ...COLUMNS], [captures]);
  const runs = new Set(captures.map(({ run }) => run)).size;
  return (
    <>
      <header class="headline">
        <h1>{formatPlural(runs, "run")}</h1>
        <p class="subline">
          <span>
            <code>{scan.root}</code>
          </span>
          {captures.length > runs && <span>{formatPlural(captures.length, "capture")}</span>}
          {scan.is_scanning && <span role="status">still scanning</span>}
        </p>
      </header>
      <section aria-label="Runs" class="runs">
        <Analyses captures={captures} />
        <SortableTable caption="Runs" columns={columns} rows={captures} filterLabel="Find a run" />
      </section>
    </>
  );
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
        {left.length > 0 && `${done} of `}
        {formatPlural(captures.length, "capture")} analyzed
      </p>
      <span class="button-row">
        {left.length > 0 && isWorking && (
          <button type="button" onClick={stopAnalyses}>
            Stop
          </button>
        )}
        {left.length > 0 && !isWorking && (
          <button type="button" onClick={() => analyze(left.map(({ id }) => id))}>
            Analyze {left.length === captures.length ? "all" : `the other ${left.length}`}
          </button>
        )}
      </span>
      <span class="progress" aria-hidden="true">
        <span style={{ width: `${(100 * done) / captures.length}%` }} />
      </span>
    </div>
  );
}
