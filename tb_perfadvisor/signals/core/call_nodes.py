"""Folds calls into a tree: calls of one name below the same callers are one node."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.trace.integer_groups import group_rows
from tb_perfadvisor.trace.nesting import depths
from tb_perfadvisor.trace.tables import Int32, Int64


class CallNodes(Struct, frozen=True):
    """Nodes, callers before what they call; columns of shape (n,)."""

    parent: Int64
    """The node of the caller; -1 at the top."""
    name: Int64
    count: Int64
    self_ns: Int64
    """Without the calls inside."""
    total_ns: Int64
    example: Int64
    """The first call of the node."""

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.parent)


def fold_calls(parent: Int64, name: Int32 | Int64, self_ns: Int64) -> tuple[CallNodes, Int64]:
    """Fold calls into nodes.

    Args:
        parent: The call around each one; -1 for none. Shape (calls,).
        name: What calls of a node have in common.
        self_ns: Their time without the calls inside.

    Returns:
        The nodes, and the node of each call.
    """
    node = np.full(parent.size, -1, dtype=np.int64)
    depth = depths(parent)
    order = np.argsort(depth, kind="stable")
    levels = np.split(order, np.cumsum(np.bincount(depth))[:-1]) if parent.size else []
    parents: list[Int64] = []
    examples: list[Int64] = []
    found = 0
    for calls in levels:
        caller = np.where(parent[calls] >= 0, node[parent[calls]], -1)
        first, group = group_rows(caller, name[calls])
        node[calls] = found + group
        parents.append(caller[first])
        examples.append(calls[first])
        found += first.size
    none = np.zeros(0, dtype=np.int64)
    parent_of_node = np.concatenate([none, *parents])
    example = np.concatenate([none, *examples])
    own_ns = np.zeros(found, dtype=np.int64)
    np.add.at(own_ns, node, self_ns)
    total_ns = own_ns.copy()
    last = found
    for nodes in reversed(parents):
        places = np.arange(last - nodes.size, last)
        last -= nodes.size
        below = nodes >= 0
        np.add.at(total_ns, nodes[below], total_ns[places[below]])
    folded = CallNodes(
        parent=parent_of_node,
        name=name[example].astype(np.int64),
        count=np.bincount(node, minlength=found),
        self_ns=own_ns,
        total_ns=total_ns,
        example=example,
    )
    return folded, node
