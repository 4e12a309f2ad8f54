// A tree of calls, as a table or as flames: as it is or inverted, and searched.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { formatCount, formatDuration, formatPlural } from "../../format";
import type { CallTree } from "../../report";
import { Below, useFlag, useLinked, useNumber } from "../../state/linked";
import { pageLink } from "../../state/store";
import { formatRange, rangeAround } from "../../timeline/range";
import { FindField } from "../../widgets/find";
import { Name } from "../../widgets/name";
import { PageLink } from "../../widgets/page-link";
import { FlameGraph, describe } from "./flame-graph";
import { type CallNode, findCalls, growTree, invertTree, nodeOf } from "./tree";
import { TreeGrid } from "./tree-grid";

export const TREE_LOOKS = ["tree", "flames"] as const;
export type TreeLook = (typeof TREE_LOOKS)[number];
export const LOOK_NAMES: [TreeLook, string][] = [
  ["tree", "Tree"],
  ["flames", "Flame graph"],
];

interface Props {
  tree: CallTree;
  steps: number;
  label: string;
  look: TreeLook;
}

export function CallsTree({ tree, steps, label, look }: Props): JSX.Element {
  const [isInverted, setInverted] = useFlag("inverted");
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
        <button type="button" aria-pressed={isInverted} title="What takes the time itself, and below it who calls it" onClick={() => setInverted(!isInverted)}>
          Inverted
        </button>
        <FindField label="Find calls" query={text} setQuery={setText} />
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
      <p class="table-note muted">
        <em>Itself</em>: without the calls inside. Kernels, launches and copies are calls, too.
      </p>
      {tree.truncated > 0 && (
        <p class="table-note muted">{formatCount(tree.truncated)} smaller nodes are not included; their time is in “smaller calls”.</p>
      )}
    </>
  );
}
