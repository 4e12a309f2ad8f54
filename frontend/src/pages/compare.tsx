// Compares captures with a base: the selection, and the comparison once all are analyzed.
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import type { Capture, Progress } from "../state/answers";
import { fetchComparison } from "../state/api";
import { formatCount, formatPlural } from "../format";
import type { Comparison } from "../report";
import { toApiError } from "../state/answers";
import { useFlag, useLinked } from "../state/linked";
import { pin, pinned } from "../state/marks";
import { type Load, attempts } from "../state/polling";
import { compareLink, compared, go, selectedId } from "../state/store";
import { frameworkName, matchesQuery } from "../text";
import { comparisonsOf } from "./comparisons";
import { captureName, nameOf, repeatedRuns } from "../state/capture-name";
import { newestFirst } from "./runs/groups";
import { Chooser } from "../widgets/chooser";
import { RunChanges } from "./run-changes";
import { Failure } from "../widgets/failure";
import { FindField } from "../widgets/find";
import { ChevronIcon, PinIcon } from "../widgets/icons";
import { Loading } from "../widgets/loading";
import { PageLink } from "../widgets/page-link";

/** Shorter lists have no search field. */
const MIN_SEARCHABLE = 8;
/** More are a list to search, not to read. */
const MOST_SHOWN = 60;
/** The limit of the route. */
const MAX_TARGETS = 20;

type State = Load<Comparison> | { state: "waiting"; captures: (Progress & { id: string })[] };

export function ComparePage({ captures }: { captures: Capture[] }): JSX.Element {
  const known = new Set(captures.map(({ id }) => id));
  const linked = compared.value.base;
  const base = [linked, selectedId.value, pinned.value].find((id) => id !== null && known.has(id)) ?? captures[0]?.id ?? "";
  const targets = compared.value.targets.filter((id) => known.has(id) && id !== base).slice(0, MAX_TARGETS);
  return (
    <>
      <Selection captures={captures} base={base} targets={targets} />
      {targets.length > 0 && <Result key={`${base} ${targets.join()}`} base={base} targets={targets} captures={captures} />}
    </>
  );
}

function Selection(props: { captures: Capture[]; base: string; targets: string[] }): JSX.Element {
  const { captures, base, targets } = props;
  const [query, setQuery] = useLinked("choose.find");
  const [isChoosing, setChoosing] = useFlag("choose", targets.length === 0);
  const repeated = useMemo(() => repeatedRuns(captures), [captures]);
  const ordered = useMemo(() => newestFirst(captures), [captures]);
  const options = useMemo(() => ordered.map((capture) => ({ id: capture.id, label: nameOf(capture, repeated) })), [ordered]);
  const candidates = ordered.filter(({ id }) => id !== base);
  const shown = candidates.filter((capture) => {
    const text = `${nameOf(capture, repeated)} ${frameworkName(capture.framework)}`;
    return targets.includes(capture.id) || matchesQuery(text, query);
  });
  // In a list that is cut off, what is chosen stays.
  const chosenFirst = (a: Capture, b: Capture): number =>
    shown.length > MOST_SHOWN ? Number(targets.includes(b.id)) - Number(targets.includes(a.id)) : 0;
  const toggle = (id: string): void =>
    go({
      ...compareLink(base, targets.includes(id) ? targets.filter((target) => target !== id) : [...targets, id]),
      // The first choice shows its comparison; further ones are made in the same list.
      ...(isChoosing && targets.length > 0 ? { choose: "1", "choose.find": query } : {}),
    });
  return (
    <section class="card choice" aria-labelledby="choice">
      <div class="card-head">
        <h1 id="choice">Compare runs</h1>
        <div class="base-choice">
          <span class="muted" aria-hidden="true">Base</span>
          <Chooser
            label="Base"
            options={options}
            chosen={base}
            placeholder="Choose a base"
            choose={(id) => go(compareLink(id, targets))}
          />
          <button
            type="button"
            class="icon-button pin"
            aria-pressed={base === pinned.value}
            aria-label="Pin the base"
            title={base === pinned.value ? "Pinned: click to unpin" : "Pin: compare all runs with this one"}
            onClick={() => pin(base === pinned.value ? null : base)}
          >
            <PinIcon />
          </button>
        </div>
      </div>
      {candidates.length > 0 && targets.length === 0 && (
        <>
          <p class="muted">
            See what a change gained: choose the run before the change as the base, then the runs after it.
          </p>
          <Suggestions captures={captures} base={base} />
        </>
      )}
      {candidates.length === 0 ? (
        <p class="muted">There is only one capture. Record another after a change, then compare the two here.</p>
      ) : (
        <details
          class="choice-runs"
          open={isChoosing}
          onToggle={({ currentTarget }) => setChoosing(currentTarget.open)}
        >
          <summary>
            <ChevronIcon />
            {targets.length === 0 ? "Choose runs to compare with the base" : `${formatPlural(targets.length, "run")} compared with the base: choose others`}
          </summary>
          {candidates.length > MIN_SEARCHABLE && (
            <FindField label="Find a run" query={query} setQuery={setQuery} />
          )}
          <ul class="checkboxes">
            {[...shown].sort(chosenFirst).slice(0, MOST_SHOWN).map((capture) => (
              <li key={capture.id}>
                <label>
                  <input
                    type="checkbox"
                    checked={targets.includes(capture.id)}
                    disabled={!targets.includes(capture.id) && targets.length >= MAX_TARGETS}
                    onChange={() => toggle(capture.id)}
                  />
                  <span>{nameOf(capture, repeated)}</span>
                </label>
              </li>
            ))}
          </ul>
          {shown.length > MOST_SHOWN && (
            <p class="muted">{formatCount(shown.length - MOST_SHOWN)} more: find them by a part of their name.</p>
          )}
        </details>
      )}
    </section>
  );
}

function Suggestions({ captures, base }: { captures: Capture[]; base: string }): JSX.Element | null {
  const capture = captures.find(({ id }) => id === base);
  const comparisons = capture ? comparisonsOf(capture, captures) : [];
  if (comparisons.length === 0) return null;
  return (
    <ul class="suggestions" aria-label="Suggested comparisons">
      <li class="muted">Suggested:</li>
      {comparisons.map(({ id, reason, to }) => (
        <li key={id}>
          <PageLink class="button" to={to}>
            {captureName(id, captures)} <span class="muted">{reason}</span>
          </PageLink>
        </li>
      ))}
    </ul>
  );
}

function Result(props: { base: string; targets: string[]; captures: Capture[] }): JSX.Element {
  const { base, targets, captures } = props;
  const [load, setLoad] = useState<State>({ state: "loading" });
  const [attempt, setAttempt] = useState(0);
  useEffect(() => {
    const controller = new AbortController();
    void poll(base, targets, controller.signal, setLoad, attempt > 0);
    return () => controller.abort();
  }, [attempt]);
  switch (load.state) {
    case "ready":
      return <RunChanges comparison={load.value} />;
    case "failed":
      return <Failure error={load.error} onRetry={() => (setLoad({ state: "loading" }), setAttempt(attempt + 1))} />;
    case "waiting":
      return <Waiting waiting={load.captures} captures={captures} />;
    default:
      return <Loading />;
  }
}

async function poll(
  base: string,
  targets: string[],
  signal: AbortSignal,
  show: (state: State) => void,
  isRetry: boolean,
): Promise<void> {
  for await (const _ of attempts(signal)) {
    try {
      const answer = await fetchComparison(base, targets, signal, isRetry);
      isRetry = false;
      if (signal.aborted) return;
      if ("comparison" in answer) {
        show({ state: "ready", value: answer.comparison });
        return;
      }
      show(answer.waiting.length > 0 ? { state: "waiting", captures: answer.waiting } : { state: "loading" });
    } catch (error) {
      if (!signal.aborted) show({ state: "failed", error: toApiError(error) });
      return;
    }
  }
}

function Waiting(props: { waiting: (Progress & { id: string })[]; captures: Capture[] }): JSX.Element {
  const { waiting, captures } = props;
  return (
    <section class="card waiting" aria-labelledby="waiting">
      <h2 id="waiting">
        Analyzing {formatPlural(waiting.length, "capture")} first
      </h2>
      <ul class="muted" role="list" aria-live="polite">
        {waiting.map(({ id, status, stage, progress }) => (
          <li key={id}>
            {captureName(id, captures)}: {status === "queued" ? "waiting" : stage || "starting"}
            {progress !== null && ` · ${Math.round(progress * 100)} %`}
            <span class={`progress${progress === null ? " progress-open" : ""}`} aria-hidden="true">
              <span style={progress === null ? {} : { width: `${progress * 100}%` }} />
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}
