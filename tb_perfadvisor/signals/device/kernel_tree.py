"""The device's work in the used steps, folded into a tree of modules, operators and kernels."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.call_nodes import CallNodes, fold_calls
from tb_perfadvisor.signals.core.origins import MODULE
from tb_perfadvisor.signals.core.work_operators import work_operators
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.tables import Int32, Int64


class KernelTree(Struct, frozen=True):
    """The work of the busiest device by where it comes from."""

    nodes: CallNodes
    """Names index `names`; examples are rows of device events below the node."""
    names: tuple[str, ...]
    shows_modules: bool
    """Whether modules are known of anything."""


class _Paths:
    """Paths of names, each prefix once."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.parent: list[int] = []
        self.name: list[int] = []
        self._place_of: dict[tuple[int, int], int] = {}

    def below(self, parent: int, name: str) -> int:
        """The path that ends with a name after another path; -1 is the empty one."""
        key = parent, self.names.setdefault(name, len(self.names))
        if key not in self._place_of:
            self._place_of[key] = len(self.parent)
            self.parent.append(parent)
            self.name.append(key[1])
        return self._place_of[key]


@memoized
def kernel_tree(signals: Signals) -> KernelTree | None:
    """The device's work in the used steps; None without any.

    A kernel of PyTorch lies below the modules around the operator that launched it, in the backward
    pass below those of its forward operator; an operation of XLA below the parts of the name that
    the framework gave it.
    """
    trace = signals.trace
    events = trace.events
    rows = signals.steps.own(signals.device.rows)
    if not rows.size:
        return None
    paths = _Paths()
    operation = trace.operations(rows)
    scope = signals.origins.scope[rows]
    operator = work_operators(trace, signals.launching_operator, rows)
    operator_name = np.where(operator >= 0, events.name[operator], -1)
    # Paths are made once for each kind of origin, not for each kernel.
    keys = np.column_stack((operation, scope, operator_name, events.name[rows]))
    unique, group = np.unique(keys, axis=0, return_inverse=True)
    leaf = np.zeros(len(unique), dtype=np.int64)
    of_scope: dict[int, int] = {}
    has_modules = False
    for place, (op, at, launcher, name) in enumerate(unique.tolist()):
        path = _xla_path(signals, paths, op) if op >= 0 else -1
        if path < 0 and at >= 0:
            path = _module_path(signals, paths, at, of_scope)
        has_modules |= path >= 0
        if launcher >= 0 and op < 0:
            path = paths.below(path, trace.strings[launcher])
        leaf[place] = paths.below(path, trace.strings[name])
    return KernelTree(
        nodes=_nodes(paths, leaf[group.reshape(-1)], events.duration_ns[rows], rows),
        names=tuple(paths.names),
        shows_modules=has_modules,
    )


def _xla_path(signals: Signals, paths: _Paths, operation: int) -> int:
    text = signals.trace.text(int(signals.trace.hlo.path[operation]))
    path = -1
    for part in text.split("/")[:-1]:
        path = paths.below(path, part)
    return path


def _module_path(signals: Signals, paths: _Paths, scope: int, known: dict[int, int]) -> int:
    """The path of a module's range: the modules around it, and itself."""
    trace, parent = signals.trace, signals.trace.events.parent
    around = []
    row = scope
    while row >= 0 and row not in known:
        if trace.name(row).startswith(MODULE):
            around.append(row)
        row = int(parent[row])
    path = known.get(row, -1)
    for row in reversed(around):
        path = known[row] = paths.below(path, trace.name(row).removeprefix(MODULE))
    return path


def _nodes(paths: _Paths, leaf: Int64, duration_ns: Int64, rows: Int32) -> CallNodes:
    """The nodes of all paths, with the work at the leaves."""
    count = len(paths.parent)
    own_ns = np.bincount(leaf, weights=duration_ns, minlength=count).astype(np.int64)
    calls = np.bincount(leaf, minlength=count)
    example = np.full(count, -1, dtype=np.int64)
    example[leaf[::-1]] = rows[::-1]
    parent = np.array(paths.parent, dtype=np.int64)
    nodes, node = fold_calls(parent, np.array(paths.name, dtype=np.int64), own_ns)
    number = np.zeros(len(nodes), dtype=np.int64)
    number[node] = calls
    shown = np.full(len(nodes), -1, dtype=np.int64)
    shown[node] = example
    for place in range(len(nodes) - 1, -1, -1):
        above = nodes.parent[place]
        if above >= 0:
            number[above] += number[place]
            shown[above] = max(shown[above], shown[place])
    return CallNodes(
        parent=nodes.parent,
        name=nodes.name,
        count=number,
        self_ns=nodes.self_ns,
        total_ns=nodes.total_ns,
        example=shown,
    )
