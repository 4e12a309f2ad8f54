// A tree of calls, as it is and inverted: what calls what, and what is called by whom.
import type { CallTree } from "../../report";

export interface CallNode {
  /** Its place in the view; in an inverted tree, in the order in which nodes are made. */
  id: number;
  name: string;
  kind: string;
  count: number;
  totalNs: number;
  /** Without the calls inside. */
  selfNs: number;
  caller: CallNode | null;
  /** What it calls, or in an inverted tree its callers; the largest first. */
  inside: CallNode[];
  /** The first call, if it is known. */
  first: { startNs: number; durationNs: number } | null;
}

/** Stands for nodes that the view leaves out. */
export const REST = "rest";

/** The kind of calls that wait for the device, for another process or for another thread. */
export const WAIT = "wait";

const bySize = (a: CallNode, b: CallNode): number => b.totalNs - a.totalNs || a.id - b.id;

/** The top of a tree; it stands for the whole time. */
function topOf(label: string): CallNode {
  return { id: -1, name: label, kind: "", count: 0, totalNs: 0, selfNs: 0, caller: null, inside: [], first: null };
}

export function growTree(tree: CallTree): CallNode {
  const top = topOf(tree.label);
  const nodes = tree.parent.map(
    (_, id): CallNode => ({
      id,
      name: tree.names[tree.name[id] ?? -1] ?? "",
      kind: tree.kind[id] ?? "",
      count: tree.count[id] ?? 0,
      totalNs: tree.total_ns[id] ?? 0,
      selfNs: tree.self_ns[id] ?? 0,
      caller: null,
      inside: [],
      first: { startNs: tree.start_ns[id] ?? 0, durationNs: tree.duration_ns[id] ?? 0 },
    }),
  );
  for (const [id, node] of nodes.entries()) {
    const caller = nodes[tree.parent[id] ?? -1] ?? top;
    node.caller = caller;
    caller.inside.push(node);
  }
  top.totalNs = top.inside.reduce((sum, { totalNs }) => sum + totalNs, 0);
  let next = nodes.length;
  for (const node of nodes) {
    const restNs = node.totalNs - node.selfNs - node.inside.reduce((sum, { totalNs }) => sum + totalNs, 0);
    if (restNs > 0) {
      node.inside.push({
        ...topOf("smaller calls"), id: next, kind: REST, totalNs: restNs, selfNs: restNs, caller: node,
      });
      next += 1;
    }
  }
  for (const node of [top, ...nodes]) node.inside.sort(bySize);
  return top;
}

/** By what takes the time itself: each name with its own time, and below it its callers. */
export function invertTree(top: CallNode): CallNode {
  const inverted = topOf(top.name);
  const children = new Map<CallNode, Map<string, CallNode>>();
  let next = 0;
  const below = (above: CallNode, { name, kind, first }: CallNode): CallNode => {
    const known = children.get(above) ?? new Map<string, CallNode>();
    children.set(above, known);
    let node = known.get(name);
    if (!node) {
      node = { ...topOf(name), id: next, kind, caller: above, first };
      next += 1;
      known.set(name, node);
      above.inside.push(node);
    }
    return node;
  };
  eachNode(top, (leaf) => {
    if (leaf.selfNs === 0) return;
    inverted.totalNs += leaf.selfNs;
    let at = inverted;
    for (let node: CallNode | null = leaf; node && node !== top; node = node.caller) {
      at = below(at, node);
      at.totalNs += leaf.selfNs;
      at.count += leaf.count;
      if (at.caller === inverted) at.selfNs += leaf.selfNs;
    }
  });
  eachNode(inverted, (node) => node.inside.sort(bySize));
  inverted.inside.sort(bySize);
  return inverted;
}

/** Visits all nodes below the top, each before those inside it. */
export function eachNode(top: CallNode, visit: (node: CallNode, depth: number) => void, depth = 0): void {
  for (const node of top.inside) {
    visit(node, depth);
    eachNode(node, visit, depth + 1);
  }
}

export interface Found {
  /** Nodes whose names contain the text. */
  matches: Set<CallNode>;
  /** Those, what is around them and what is inside them. */
  shown: Set<CallNode>;
  /** Time of the matches, each nanosecond once. */
  totalNs: number;
}

export function findCalls(top: CallNode, text: string): Found | null {
  const wanted = text.trim().toLowerCase();
  if (wanted === "") return null;
  const found: Found = { matches: new Set(), shown: new Set(), totalNs: 0 };
  const look = (node: CallNode, isInside: boolean): boolean => {
    const isMatch = node.name.toLowerCase().includes(wanted);
    if (isMatch) found.matches.add(node);
    if (isMatch && !isInside) found.totalNs += node.totalNs;
    let has = isMatch;
    for (const inner of node.inside) has = look(inner, isInside || isMatch) || has;
    if (has || isInside) found.shown.add(node);
    return has;
  };
  for (const node of top.inside) look(node, false);
  return found;
}

/** A node with less than this part of its caller's time is no longer on the heaviest path. */
const HEAVY_SHARE = 0.5;

/** What is open at first: the heaviest path, down to where the time spreads. */
export function heaviestPath(top: CallNode): Set<number> {
  const open = new Set<number>();
  let node = top.inside[0];
  while (node && node.inside.length > 0) {
    open.add(node.id);
    const heaviest: CallNode | undefined = node.inside[0];
    if (!heaviest || heaviest.totalNs < HEAVY_SHARE * node.totalNs) break;
    node = heaviest;
  }
  return open;
}

export function nodeOf(top: CallNode, id: number): CallNode | null {
  let found: CallNode | null = null;
  eachNode(top, (node) => {
    if (node.id === id) found = node;
  });
  return found;
}

/** A node and what is around it, without the top. */
export function pathTo(node: CallNode): CallNode[] {
  const path: CallNode[] = [];
  for (let at: CallNode | null = node; at && at.caller; at = at.caller) path.unshift(at);
  return path;
}
