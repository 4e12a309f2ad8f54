// The recordings of a run over time: step times, and when each finding came and went.
import type { ComponentChildren, JSX } from "preact";
import { useCallback, useEffect, useState } from "preact/hooks";
import { causeColor } from "../charts/colors";
import { causesOf, describeHistory, describeMoment, drawHistory } from "../charts/history-chart";
import { PlotFigure } from "../charts/plot-figure";
import { formatChange, formatDuration, formatPlural, formatShare } from "../format";
import type { FindingHistory, History as HistoryInfo, HistoryView, MissingRecording, Occurrence, Recording } from "../report";
import { analyze, analyzeUnasked, stopAnalyses, waiting } from "../state/analyses";
import { type Capture, toApiError } from "../state/answers";
import { fetchHistory } from "../state/api";
import type { Load } from "../state/polling";
import { captureLink, captures, compareLink, go } from "../state/store";
import { sessionName } from "../text";
import { Failure } from "../widgets/failure";
import { Head } from "../widgets/head";
import { Legend } from "../widgets/legend";
import { Loading } from "../widgets/loading";
import { Name } from "../widgets/name";
import { PageLink } from "../widgets/page-link";
import { Prose } from "../widgets/prose";
import { ScrollBox } from "../widgets/scroll-box";
import { type Column, SortableTable } from "../widgets/sortable-table";
import { captureName } from "../state/capture-name";
import { VERDICTS } from "./run-changes";

/** With more recordings, savings do not fit into the cells of the table of findings. */
const MOST_WITH_SAVINGS = 8;

interface Props {
  captureId: string;
  isPart: boolean;
  /** Shown below, once the recordings are there. */
  children: ComponentChildren;
}

/** Shows the last view until one with more recordings is there. */
export function History({ captureId, isPart, children }: Props): JSX.Element {
  const [load, setLoad] = useState<Load<HistoryView>>({ state: "loading" });
  const [attempt, setAttempt] = useState(0);
  const list = captures.value.state === "ready" ? captures.value.value.captures : [];
  const analyzed = list.filter(({ status }) => status === "done" || status === "failed").length;
  useEffect(() => {
    const controller = new AbortController();
    fetchHistory(captureId, controller.signal).then(
      (value) => {
        setLoad({ state: "ready", value });
        analyzeUnasked(value.missing.filter(({ is_new: isNew }) => isNew).map(({ id }) => id).reverse());
      },
      (error: unknown) => {
        if (!controller.signal.aborted) setLoad({ state: "failed", error: toApiError(error) });
      },
    );
    return () => controller.abort();
  }, [captureId, analyzed, attempt]);
  if (load.state === "failed") return <Failure error={load.error} onRetry={() => setAttempt(attempt + 1)} />;
  if (load.state !== "ready") return <Loading />;
  return (
    <>
      <View view={load.value} captureId={captureId} list={list} isPart={isPart} />
      {children}
    </>
  );
}

/** One sentence: what changed from the first recording to the latest, or what there is to compare. */
export function describeRecordings({ history, missing }: HistoryView): string {
  if (history.headline) return history.headline;
  const [only] = history.recordings;
  const recorded = formatPlural(history.recordings.length + missing.length, "recording");
  const step = only?.run.step_time_ns ?? null;
  return `${history.recordings.length} of ${recorded} analyzed${step === null ? "" : `: a step takes ${formatDuration(step)}`}`;
}

function View({ view, captureId, list, isPart }: Omit<Props, "children"> & { view: HistoryView; list: Capture[] }): JSX.Element {
  const { history, missing, earlier } = view;
  const count = history.recordings.length;
  return (
    <>
      <Head
        isPart={isPart}
        title={<Prose text={describeRecordings(view)} />}
        facts={[
          history.verdict && <span class={`badge verdict-${history.verdict}`}>{VERDICTS[history.verdict]}</span>,
          <>
            {count > 1 ? "latest vs. first of " : ""}
            {formatPlural(count, "recording")} of <Name of={history.name} />
          </>,
          earlier > 0 && `${formatPlural(earlier, "older one")} not shown`,
        ]}
      />
      {missing.length > 0 && <Missing missing={missing} list={list} />}
      {count > 0 && (
        <>
          <StepTimes history={history} captureId={captureId} />
          <Findings history={history} />
          <Recordings history={history} />
        </>
      )}
    </>
  );
}

/** The recordings that are not analyzed, or cannot be. */
function Missing({ missing, list }: { missing: MissingRecording[]; list: Capture[] }): JSX.Element {
  const left = missing.filter(({ is_new: isNew }) => isNew).map(({ id }) => id);
  const failed = missing.filter(({ is_new: isNew }) => !isNew);
  const isWorking = left.some((id) => waiting.value.includes(id));
  return (
    <section class="card history-missing" aria-label="Recordings that are not shown">
      {left.length > 0 && (
        <p class="analyses">
          <span class="muted" role="status">
            {formatPlural(left.length, "recording")} not analyzed yet
            {isWorking && ": analyzing"}
          </span>
          <span class="button-row">
            {isWorking ? (
              <button type="button" onClick={stopAnalyses}>
                Stop
              </button>
            ) : (
              <button type="button" onClick={() => analyze(left)}>
                Analyze {left.length === 1 ? "it" : "them"}
              </button>
            )}
          </span>
        </p>
      )}
      {failed.length > 0 && (
        <ul class="muted">
          {failed.map(({ id, reason }) => (
            <li key={id}>
              <Name of={captureName(id, list)} />: {reason}
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function StepTimes({ history, captureId }: { history: HistoryInfo; captureId: string }): JSX.Element {
  const draw = useCallback((width: number) => drawHistory(history, captureId, width), [history, captureId]);
  const hasUsual = history.recordings.some(({ moment }) => moment.usual_step_ns !== null);
  return (
    <section class="card" aria-labelledby="history-steps">
      <div class="card-head">
        <h2 id="history-steps">Step time</h2>
        <p class="muted">click a bar to open its report</p>
      </div>
      <PlotFigure
        label={describeHistory(history)}
        draw={draw}
        onPick={(bar) => go(captureLink((bar as { recording: Recording }).recording.run.id))}
      />
      <Legend entries={causesOf(history).map(({ cause, label }) => [causeColor(cause), label])}>
        {hasUsual && (
          <li>
            <span class="swatch-line" aria-hidden="true" /> without the profiler
          </li>
        )}
      </Legend>
    </section>
  );
}

interface Row {
  number: number;
  recording: Recording;
  before: Recording | undefined;
}

/** By how much a step changed, unless the two cannot be compared. */
const changeNs = ({ recording: { change, verdict } }: Row): number | null =>
  change === null || verdict === "not_comparable" || verdict === "no_steps" || verdict === "memory" ? null : change.change_ns;

const COLUMNS: Column<Row>[] = [
  { key: "number", label: "No.", unit: "", value: ({ number }) => number },
  {
    key: "recorded",
    label: "Recorded",
    unit: null,
    value: ({ recording: { recorded, run } }) => sessionName(recorded) || run.name,
    render: ({ recording: { recorded, run } }) => (
      <PageLink to={captureLink(run.id)}>{recorded ? <span class="when">{sessionName(recorded)}</span> : <Name of={run.name} />}</PageLink>
    ),
  },
  { key: "at", label: "At step", unit: "", value: ({ recording }) => recording.moment.step },
  { key: "step", label: "Step time", unit: "ns", value: ({ recording }) => recording.run.step_time_ns },
  { key: "usual", label: "Without profiler", unit: "ns", value: ({ recording }) => recording.moment.usual_step_ns },
  {
    key: "change",
    label: "Change",
    unit: "ns",
    value: changeNs,
    render: (row) => {
      const ns = changeNs(row);
      const share = row.recording.change?.change_share ?? null;
      return ns === null ? "–" : `${formatChange(ns)}${share === null ? "" : ` (${formatShare(Math.abs(share))})`}`;
    },
  },
  {
    key: "verdict",
    label: "Verdict",
    unit: null,
    value: ({ recording: { verdict } }) => verdict && VERDICTS[verdict],
    render: ({ recording: { verdict } }) =>
      verdict === null ? "–" : <span class={`badge verdict-${verdict}`}>{VERDICTS[verdict]}</span>,
  },
  { key: "findings", label: "Findings", unit: "", value: ({ recording }) => recording.run.findings },
  {
    key: "compare",
    label: "Compare",
    unit: null,
    value: () => null,
    render: ({ number, recording, before }) =>
      before === undefined ? (
        "–"
      ) : (
        <PageLink
          class="when"
          to={compareLink(before.run.id, [recording.run.id])}
          title={`Compare recording ${number} with the one before`}
        >
          with no. {number - 1}
        </PageLink>
      ),
  },
];

function Recordings({ history: { recordings } }: { history: HistoryInfo }): JSX.Element {
  const rows = recordings.map((recording, place) => ({ number: place + 1, recording, before: recordings[place - 1] }));
  const columns = COLUMNS.filter(
    ({ key, value }) => (key !== "at" && key !== "usual") || rows.some((row) => value(row) !== null),
  );
  return (
    <section aria-labelledby="history-recordings">
      <div class="section-head">
        <h2 id="history-recordings">Recordings</h2>
        <p class="muted">each compared with the one before</p>
      </div>
      <SortableTable caption="Recordings" columns={columns} rows={rows} filterLabel="Find a recording" />
    </section>
  );
}

function Findings({ history }: { history: HistoryInfo }): JSX.Element {
  const { recordings, findings } = history;
  if (findings.length === 0) return <p class="muted">No recording has a finding.</p>;
  return (
    <section class="card" aria-labelledby="history-findings">
      <div class="card-head">
        <h2 id="history-findings">When findings came and went</h2>
        <p class="muted">{recordings.length > MOST_WITH_SAVINGS ? "columns: recordings" : "expected saving per step in each recording"}</p>
      </div>
      <ScrollBox role="group" label="Findings in each recording">
        <table class="finding-times">
          <thead>
            <tr>
              <th scope="col">Finding</th>
              {recordings.map((recording, place) => (
                <th key={recording.run.id} scope="col" title={describeMoment(recording, place + 1)}>
                  {place + 1}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {findings.map((finding) => (
              <FindingRow key={finding.rule_id} finding={finding} recordings={recordings} />
            ))}
          </tbody>
        </table>
      </ScrollBox>
    </section>
  );
}

function FindingRow({ finding, recordings }: { finding: FindingHistory; recordings: Recording[] }): JSX.Element {
  return (
    <tr>
      <th scope="row">
        <Prose text={finding.title} />
        {finding.occurrences.map((occurrence) => (
          <p key={occurrence.first} class="muted">
            <OccurrenceText occurrence={occurrence} recordings={recordings} />
          </p>
        ))}
      </th>
      {recordings.map((recording, place) => (
        <td key={recording.run.id}>
          <State finding={finding} recording={recording} place={place} hasSaving={recordings.length <= MOST_WITH_SAVINGS} />
        </td>
      ))}
    </tr>
  );
}

function State(props: { finding: FindingHistory; recording: Recording; place: number; hasSaving: boolean }): JSX.Element {
  const { finding, recording, place, hasSaving } = props;
  const state = finding.states[place] ?? "unknown";
  const saving = finding.expected_ns[place] ?? null;
  const moment = describeMoment(recording, place + 1);
  if (state !== "found") {
    const text = state === "absent" ? "not found" : "not checked";
    return (
      <span class={`state state-${state}`} title={`${moment}\n${text}`}>
        <span class="visually-hidden">{text}</span>
      </span>
    );
  }
  const text = saving === null ? "found" : `${formatDuration(saving)} to save`;
  return (
    <PageLink
      class={`state state-found severity-${finding.severities[place] ?? "low"}`}
      title={`${moment}\n${text}`}
      to={{ ...captureLink(recording.run.id), finding: finding.rule_id }}
    >
      {hasSaving && saving !== null ? formatDuration(saving) : <span class="visually-hidden">{text}</span>}
    </PageLink>
  );
}

/** When an occurrence began and ended, in words, without the saving. */
export function describeOccurrence({ absent_before: absent, first, gone }: Occurrence): string {
  // Nothing shows when it came if no earlier recording was checked.
  const came = absent !== null ? `Came with no. ${first + 1}` : first === 0 ? "There from the start" : `First seen in no. ${first + 1}`;
  return gone === null ? `${came}, still there` : `${came}, gone with no. ${gone + 1}`;
}

function OccurrenceText({ occurrence, recordings }: { occurrence: Occurrence; recordings: Recording[] }): JSX.Element {
  const { last, gone, change } = occurrence;
  const [before, after] = [recordings[last], gone === null ? undefined : recordings[gone]];
  return (
    <>
      {describeOccurrence(occurrence)}
      {change?.summary && `: ${change.summary}`}
      {before && after && (
        <>
          {" "}
          <PageLink to={compareLink(before.run.id, [after.run.id])}>Compare</PageLink>
        </>
      )}
    </>
  );
}
