// Any number of captures against one: the choice, and the answer that is asked for again until
// all of them are analyzed.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { type Capture, type Progress, fetchComparison } from "../api";
import { formatPlural } from "../format";
import type { Comparison } from "../report";
import {
  BACK_OFF, FIRST_WAIT_MS, LONGEST_WAIT_MS, type Load, compare, compared, selectedId, sleep, toApiError,
} from "../state";
import { frameworkName, sessionName } from "../text";
import { ComparisonView } from "./comparison";
import { Failure } from "./failure";
import { ChevronIcon } from "./icons";
import { Loading } from "./waiting";

/** As the route has it. */
const MAX_TARGETS = 20;

type State = Load<Comparison> | { state: "waiting"; captures: (Progress & { id: string })[] };

export const captureName = ({ run, session }: Capture, all: Capture[]): string => {
  const isOnly = all.filter((other) => other.run === run).length === 1;
  const name = run || ".";
  return isOnly ? name : `${name} · ${sessionName(session)}`;
};

export function Compare({ captures }: { captures: Capture[] }): JSX.Element {
  const known = new Set(captures.map(({ id }) => id));
  const linked = compared.value.base;
  const base = linked !== null && known.has(linked) ? linked : (selectedId.value ?? captures[0]?.id ?? "");
  const targets = compared.value.targets.filter((id) => known.has(id) && id !== base).slice(0, MAX_TARGETS);
  return (
    <>
      <Choice captures={captures} base={base} targets={targets} />
      {targets.length > 0 && <Answer key={`${base} ${targets.join()}`} base={base} targets={targets} captures={captures} />}
    </>
  );
}

function Choice(props: { captures: Capture[]; base: string; targets: string[] }): JSX.Element {
  const { captures, base, targets } = props;
  const [query, setQuery] = useState("");
  const others = captures.filter(({ id }) => id !== base);
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = others.filter((capture) => {
    const text = `${captureName(capture, captures)} ${frameworkName(capture.framework)}`.toLowerCase();
    return targets.includes(capture.id) || words.every((word) => text.includes(word));
  });
  const toggle = (id: string): void =>
    compare(base, targets.includes(id) ? targets.filter((one) => one !== id) : [...targets, id]);
  return (
    <section class="card choice" aria-labelledby="choice">
      <div class="card-head">
        <h1 id="choice">Compare runs</h1>
        <label class="base-choice">
          <span class="muted">Base</span>
          <select value={base} onChange={({ currentTarget }) => compare(currentTarget.value, targets)}>
            {captures.map((capture) => (
              <option key={capture.id} value={capture.id}>
                {captureName(capture, captures)}
              </option>
            ))}
          </select>
        </label>
      </div>
      {others.length > 0 && targets.length === 0 && (
        <p class="muted">
          What has a change brought? Take the run before it as the base, and choose those that came after.
        </p>
      )}
      {others.length === 0 ? (
        <p class="muted">There is one capture. Record the program again after a change, then compare the two here.</p>
      ) : (
        <details class="choice-runs" open={targets.length === 0}>
          <summary>
            <ChevronIcon />
            {targets.length === 0 ? "Choose runs to compare with the base" : `${formatPlural(targets.length, "run")} compared with the base: choose others`}
          </summary>
          {others.length > 8 && (
            <input
              type="search"
              aria-label="Find a run"
              placeholder="Find a run"
              value={query}
              onInput={({ currentTarget }) => setQuery(currentTarget.value)}
            />
          )}
          <ul class="checkboxes">
            {shown.map((capture) => (
              <li key={capture.id}>
                <label>
                  <input
                    type="checkbox"
                    checked={targets.includes(capture.id)}
                    disabled={!targets.includes(capture.id) && targets.length >= MAX_TARGETS}
                    onChange={() => toggle(capture.id)}
                  />
                  <span>{captureName(capture, captures)}</span>
                </label>
              </li>
            ))}
          </ul>
        </details>
      )}
    </section>
  );
}

function Answer(props: { base: string; targets: string[]; captures: Capture[] }): JSX.Element {
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
      return <ComparisonView comparison={load.value} />;
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
  let wait = FIRST_WAIT_MS;
  while (!signal.aborted) {
    try {
      const answer = await fetchComparison(base, targets, signal, isRetry);
      isRetry = false;
      if (signal.aborted) return;
      if ("comparison" in answer) {
        show({ state: "ready", value: answer.comparison });
        return;
      }
      show({ state: "waiting", captures: answer.waiting });
    } catch (error) {
      if (!signal.aborted) show({ state: "failed", error: toApiError(error) });
      return;
    }
    await sleep(wait, signal);
    wait = Math.min(wait * BACK_OFF, LONGEST_WAIT_MS);
  }
}

function Waiting(props: { waiting: (Progress & { id: string })[]; captures: Capture[] }): JSX.Element {
  const { waiting, captures } = props;
  const name = (id: string): string => {
    const capture = captures.find((one) => one.id === id);
    return capture ? captureName(capture, captures) : id;
  };
  return (
    <section class="card waiting" aria-labelledby="waiting">
      <h2 id="waiting">
        {formatPlural(waiting.length, "capture")} to analyze first
      </h2>
      <ul class="muted" role="list" aria-live="polite">
        {waiting.map(({ id, status, stage, progress }) => (
          <li key={id}>
            {name(id)}: {status === "queued" ? "waiting" : stage || "starting"}
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
