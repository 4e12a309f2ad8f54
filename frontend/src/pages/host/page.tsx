// What the host does: its operators as a table, and its calls as a tree and as a flame graph.
import type { JSX } from "preact";
import { formatDuration, formatPlural, formatShare } from "../../format";
import type { CallTree, CallsView, OperatorsView, Report } from "../../report";
import { fetchView } from "../../state/api";
import { Below, useChoice, useNumber } from "../../state/linked";
import { describePeriod } from "../../text";
import { Fetched } from "../../widgets/fetched";
import { Head } from "../../widgets/head";
import { Name } from "../../widgets/name";
import { keepUnits } from "../../widgets/prose";
import { Segments } from "../../widgets/segments";
import { CallsTree, LOOK_NAMES, type TreeLook } from "./calls";
import { Operators, operatorFacts } from "./operators";
import { REST, WAIT, growTree, invertTree } from "./tree";

interface Props {
  report: Report;
  captureId: string;
}

export function HostPage({ report, captureId }: Props): JSX.Element {
  return (
    <Fetched
      of={captureId}
      fetch={(signal) => Promise.all([fetchView(captureId, "operators", signal), fetchView(captureId, "calls", signal)])}
    >
      {([operators, calls]) => <Host operators={operators} calls={calls} report={report} captureId={captureId} />}
    </Fetched>
  );
}

/** A thread that waits for more of its time than this is described by that. */
const MOSTLY = 0.5;

/** In one sentence: what takes the most time itself, or that the thread mostly waits. Waiting is no work. */
export function headline(tree: CallTree, steps: number, period: string): string {
  const { inside, totalNs: wholeNs } = invertTree(growTree(tree));
  const part = (ns: number): string => `${formatDuration(ns / steps)} ${period} (${formatShare(wholeNs ? ns / wholeNs : null)})`;
  const waitsNs = inside.reduce((sum, { kind, totalNs }) => sum + (kind === WAIT ? totalNs : 0), 0);
  const first = inside.find(({ kind }) => kind !== REST && kind !== WAIT);
  if (waitsNs > MOSTLY * wholeNs) return `${tree.label} waits ${part(waitsNs)}${first ? `, and works longest in ${first.name}` : ""}`;
  return first ? `${first.name} itself takes ${part(first.totalNs)} of ${tree.label}` : "No time in calls";
}

type Look = "table" | TreeLook;

function Host({ operators, calls, report, captureId }: Props & { operators: OperatorsView | null; calls: CallsView | null }): JSX.Element {
  const threads = calls?.threads ?? [];
  const looks: [Look, string][] = [...(operators ? [["table", "Table"] as [Look, string]] : []), ...(threads.length > 0 ? LOOK_NAMES : [])];
  const [look, setLook] = useChoice<Look>("as", looks.map(([name]) => name), looks[0]?.[0] ?? "table");
  const [at, setAt] = useNumber("of", 0);
  const tree = threads[at] ?? threads[0];
  const steps = calls?.steps ?? Math.max(report.overview.steps, 1);
  const lead = threads[0];
  return (
    <>
      <Head
        title={<Name of={keepUnits(lead ? headline(lead, steps, describePeriod(report)) : "Operators of the host")} />}
        facts={operators ? operatorFacts(operators, report) : []}
      />
      <section aria-label="Calls" class={look === "table" ? "" : "card"}>
        <div class="call-tools">
          {looks.length > 1 && <Segments label="Show as" options={looks} chosen={look} choose={setLook} />}
          {look !== "table" && tree && (
            <label>
              Of{" "}
              <select value={String(threads.indexOf(tree))} onChange={({ currentTarget }) => setAt(Number(currentTarget.value))}>
                {threads.map(({ label }, index) => (
                  <option key={index} value={index}>
                    {label}
                  </option>
                ))}
              </select>
            </label>
          )}
          {look !== "table" && calls && calls.threads_truncated > 0 && (
            <span class="muted">{formatPlural(calls.threads_truncated, "thread")} with less time not included</span>
          )}
        </div>
        {look === "table"
          ? operators && <Operators view={operators} report={report} captureId={captureId} />
          : tree && (
              <Below key={at} name="of">
                <CallsTree tree={tree} steps={steps} label={`Calls of ${tree.label}`} look={look} />
              </Below>
            )}
      </section>
    </>
  );
}
