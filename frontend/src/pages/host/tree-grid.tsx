// A tree of calls as a table whose rows open, by mouse and by arrow keys.
import type { JSX } from "preact";
import { useMemo, useRef } from "preact/hooks";
import { formatCount, formatDuration, formatShare } from "../../format";
import { useLinked } from "../../state/linked";
import { ChevronIcon } from "../../widgets/icons";
import { LongName } from "../../widgets/name";
import { ScrollBox } from "../../widgets/scroll-box";
import { type CallNode, type Found, REST, WAIT, heaviestPath, pathTo } from "./tree";

interface Props {
  top: CallNode;
  label: string;
  found: Found | null;
  /** Times are divided by this. */
  steps: number;
  chosen: CallNode | null;
  choose(node: CallNode): void;
}

interface Row {
  node: CallNode;
  depth: number;
  isOpen: boolean;
}

/** Like times, calls are those of a step; what is called in fewer than all steps is counted. */
export function countCalls({ count }: CallNode, steps: number): string {
  if (count === 0) return "–";
  return count < steps ? `${formatCount(count)} in all` : formatCount(count / steps);
}

/** Rows that are rendered at most; a search finds the others. */
const MAX_ROWS = 400;
const INDENT_PX = 14;

function rowsOf(top: CallNode, isOpen: (node: CallNode) => boolean, found: Found | null): Row[] {
  const rows: Row[] = [];
  const add = (node: CallNode, depth: number): void => {
    if (rows.length >= MAX_ROWS || (found && !found.shown.has(node))) return;
    const open = node.inside.length > 0 && isOpen(node);
    rows.push({ node, depth, isOpen: open });
    if (open) for (const inner of node.inside) add(inner, depth + 1);
  };
  for (const node of top.inside) add(node, 0);
  return rows;
}

export function TreeGrid({ top, label, found, steps, chosen, choose }: Props): JSX.Element {
  // In the address: the nodes that are not as they are at first.
  const [text, setText] = useLinked("toggled");
  const toggled = useMemo(() => new Set(text.split("-").filter(Boolean).map(Number)), [text]);
  const initial = useMemo(() => heaviestPath(top), [top]);
  // What leads to a match, or to the chosen node, is open.
  const leading = useMemo(() => {
    const ids = new Set(chosen ? pathTo(chosen).slice(0, -1).map(({ id }) => id) : []);
    for (const match of found?.matches ?? []) for (const { id } of pathTo(match).slice(0, -1)) ids.add(id);
    return ids;
  }, [found, chosen]);
  const isOpen = ({ id }: CallNode): boolean => (initial.has(id) || leading.has(id)) !== toggled.has(id);
  const rows = rowsOf(top, isOpen, found);
  const toggle = ({ id }: CallNode): void => {
    const next = new Set(toggled);
    if (!next.delete(id)) next.add(id);
    setText([...next].sort((a, b) => a - b).join("-"));
  };
  const body = useRef<HTMLTableSectionElement>(null);
  const current = Math.max(rows.findIndex(({ node }) => node === chosen), 0);
  const focus = (at: number): void => {
    const row = rows[at];
    if (!row) return;
    choose(row.node);
    requestAnimationFrame(() => body.current?.querySelectorAll<HTMLElement>("tr")[at]?.focus());
  };
  const onKey = (event: KeyboardEvent): void => {
    const row = rows[current];
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys: Record<string, () => void> = {
      ArrowDown: () => focus(Math.min(current + 1, rows.length - 1)),
      ArrowUp: () => focus(Math.max(current - 1, 0)),
      ArrowRight: () => (row.isOpen || row.node.inside.length === 0 ? focus(Math.min(current + 1, rows.length - 1)) : toggle(row.node)),
      ArrowLeft: () => (row.isOpen ? toggle(row.node) : focus(rows.findIndex(({ node }) => node === row.node.caller))),
      Home: () => focus(0),
      End: () => focus(rows.length - 1),
    };
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };
  return (
    <ScrollBox role="group" label={label}>
      <table role="treegrid" aria-label={label} class="call-tree" onKeyDown={onKey}>
        <thead>
          <tr>
            <th scope="col" class="text">Call</th>
            <th scope="col" class="number">Time</th>
            <th scope="col" class="number">Share</th>
            <th scope="col" class="number">Itself</th>
            <th scope="col" class="number">Calls</th>
          </tr>
        </thead>
        <tbody ref={body}>
          {rows.map(({ node, depth, isOpen: open }, at) => (
            <tr
              key={node.id}
              class={node === chosen ? "chosen" : ""}
              tabIndex={at === current ? 0 : -1}
              aria-level={depth + 1}
              aria-expanded={node.inside.length > 0 ? open : undefined}
              aria-selected={node === chosen}
              onClick={() => choose(node)}
            >
              <td class="text" style={{ paddingLeft: `${14 + depth * INDENT_PX}px` }}>
                <span class="call-name">
                  <button
                    type="button"
                    class={`icon-button call-toggle${open ? " is-open" : ""}`}
                    tabIndex={-1}
                    aria-hidden="true"
                    style={node.inside.length > 0 ? {} : { visibility: "hidden" }}
                    onClick={(event) => (event.stopPropagation(), toggle(node))}
                  >
                    <ChevronIcon />
                  </button>
                  <span class={found?.matches.has(node) ? "call-match" : node.kind === REST || node.kind === WAIT ? "muted" : ""}>
                    <LongName name={node.name} />
                  </span>
                  {node.kind === WAIT && <span class="badge">waits</span>}
                </span>
              </td>
              <td class="number">{formatDuration(node.totalNs / steps)}</td>
              <td class="number">{formatShare(top.totalNs ? node.totalNs / top.totalNs : null)}</td>
              <td class="number">{formatDuration(node.selfNs / steps)}</td>
              <td class="number">{countCalls(node, steps)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length >= MAX_ROWS && <p class="truncated">Only the first {formatCount(MAX_ROWS)} rows are shown. Close some, or search.</p>}
    </ScrollBox>
  );
}
