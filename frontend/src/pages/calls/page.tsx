// Where the time goes by call: a tree and a flame graph of the host's threads, and of kernels by module.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { formatCount, formatDuration, formatPlural, formatShare } from "../../format";
import type { CallTree, CallsView, Report } from "../../report";
import { fetchView } from "../../state/api";
import { Below, useChoice, useFlag, useLinked, useNumber } from "../../state/linked";
import { pageLink } from "../../state/store";
import { describePeriod } from "../../text";
import { formatRange, rangeAround } from "../../timeline/range";
import { Fetched, Nothing } from "../../widgets/fetched";
import { Name } from "../../widgets/name";
import { PageLink } from "../../widgets/page-link";
import { keepUnits } from "../../widgets/prose";
import { Segments } from "../../widgets/segments";
import { FlameGraph, describe } from "./flame-graph";
import { type CallNode, REST, findCalls, growTree, invertTree, nodeOf } from "./tree";
import { TreeGrid } from "./tree-grid";

interface Props {
  report: Report;
  captureId: string;
}

export function CallsPage({ report, captureId }: Props): JSX.Element {
  return (
    <Fetched of={captureId} fetch={(signal) => fetchView(captureId, "calls", signal)}>
      {(view) =>
        view === null ? (
          <Nothing title="This profile has no calls">
            <p>No call or kernel was recorded in the time that is analyzed.</p>
          </Nothing>
        ) : (
          <CallsOf view={view} report={report} />
        )
      }
    </Fetched>
  );
}

/** What takes the most time itself, in one sentence. */
export function headline(tree: CallTree, steps: number, period: string): string {
  const { inside, totalNs: wholeNs } = invertTree(growTree(tree));
  const first = inside.find(({ kind }) => kind !== REST);
  if (!first) return "No time in calls";
  const what = first.kind === "kernel" ? first.name : `${first.name} itself`;
  return `${what} takes ${formatDuration(first.totalNs / steps)} ${period}, ${formatShare(wholeNs ? first.totalNs / wholeNs : null)} of ${tree.label}`;
}

function CallsOf({ view, report }: { view: CallsView; report: Report }): JSX.Element {
  const trees = [...view.threads, ...(view.kernels ? [view.kernels] : [])];
  const [at, setAt] = useNumber("of", 0);
  const tree = trees[at] ?? trees[0];
  if (!tree) return <Nothing title="This profile has no calls">{null}</Nothing>;
  return (
    <>
      <header class="headline">
        <h1>
          <Name of={keepUnits(headline(tree, view.steps, describePeriod(report)))} />
        </h1>
        <p class="subline">
          <span>
            {tree === view.kernels
              ? view.shows_modules
                ? "Work of the device by module or range, operator and kernel"
                : "Work of the device by operator and kernel; the profile names no modules or ranges"
              : "Python functions, modules, operators and runtime calls"}
            {view.steps > 1 && "; times and calls are per step"}
          </span>
        </p>
      </header>
      <section class="card" aria-label="Calls">
        <div class="call-tools">
          <label>
            Of{" "}
            <select value={String(trees.indexOf(tree))} onChange={({ currentTarget }) => setAt(Number(currentTarget.value))}>
              {trees.map((each, index) => (
                <option key={index} value={index}>
                  {each === view.kernels ? `Kernels by module or range: ${each.label}` : each.label}
                </option>
              ))}
            </select>
          </label>
          {view.threads_truncated > 0 && <span class="muted">{formatPlural(view.threads_truncated, "thread")} with less time not included</span>}
        </div>
        <Below key={at} name="of">
          <Tree tree={tree} steps={view.steps} label={tree === view.kernels ? "Kernels by module or range" : `Calls of ${tree.label}`} />
        </Below>
      </section>
    </>
  );
}

function Tree({ tree, steps, label }: { tree: CallTree; steps: number; label: string }): JSX.Element {
  const [isInverted, setInverted] = useFlag("inverted");
  const [look, setLook] = useChoice("as", ["tree", "flames"], "tree");
  const [text, setText] = useLinked("find");
  const grown = useMemo(() => growTree(tree), [tree]);
  const top = useMemo(() => (isInverted ? invertTree(grown) : grown), [grown, isInverted]);
  // Below the direction, so that turning the tree forgets what was chosen in the other one.
  const [chosenId, setChosen] = useNumber("inverted.chosen", -1);
  const [rootId, setRoot] = useNumber("inverted.root", -1);
  const chosen = useMemo(() => nodeOf(top, chosenId), [top, chosenId]);
  const root = useMemo(() => nodeOf(top, rootId) ?? top, [top, rootId]);
  const found = useMemo(() => findCalls(top, text), [top, text]);
  const choose = ({ id }: CallNode): void => setChosen(id);
  const shared = { top, label: isInverted ? `${label}, inverted` : label, found, steps, chosen, choose };
  return (
    <>
      <div class="call-tools">
        <Segments
          label="Show as"
          options={[
            ["tree", "Tree"],
            ["flames", "Flame graph"],
          ]}
          chosen={look}
          choose={setLook}
        />
        <button type="button" aria-pressed={isInverted} title="What takes the time itself, and below it who calls it" onClick={() => setInverted(!isInverted)}>
          Inverted
        </button>
        <input
          type="search"
          aria-label="Find calls"
          placeholder="Find calls"
          value={text}
          onInput={({ currentTarget }) => setText(currentTarget.value)}
        />
        <span class="muted" role="status">
          {found && `${formatPlural(found.matches.size, "match", "matches")}, ${formatDuration(found.totalNs / steps)}`}
        </span>
        {look === "flames" && root !== top && (
          <button type="button" onClick={() => setRoot(-1)}>
            Zoom out
          </button>
        )}
      </div>
      {look === "tree" ? (
        <Below key={isInverted} name="inverted">
          <TreeGrid {...shared} />
        </Below>
      ) : (
        <FlameGraph {...shared} root={root} zoom={({ id }) => setRoot(id)} />
      )}
      <div class="timeline-chosen" role="status">
        {chosen && (
          <>
            <div class="timeline-chosen-head">
              <strong>
                <Name of={chosen.name} />
              </strong>
              <span>{describe(chosen, top, steps)}</span>
              {chosen.count > 0 && <span>{formatPlural(chosen.count, "call")}{steps > 1 && ` in ${formatPlural(steps, "step")}`}</span>}
            </div>
            {chosen.first && (
              <PageLink to={{ ...pageLink("timeline"), zoom: formatRange(rangeAround({ ...chosen.first, name: "" }, 0.5)) }}>
                The first call on the timeline
              </PageLink>
            )}
          </>
        )}
      </div>
      {tree.truncated > 0 && (
        <p class="table-note muted">{formatCount(tree.truncated)} smaller nodes are not included; their time is in “smaller calls”.</p>
      )}
    </>
  );
}
