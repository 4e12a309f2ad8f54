"""Which module and which line of source an event comes from, in the backward pass as well.

A forward operator lies within its module's `nn.Module:` range: a Python frame of PyTorch's
profiler, or a label of `tb_perfadvisor.instrument.torch`. A backward operator lies within an
autograd node, which by its sequence number belongs to a forward operator, and so to that one's
module and line. A node whose forward operator is not in the profile belongs to the module whose
backward pass has begun, where labels tell.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32

MODULE = "nn.Module: "
"""`nn.Module: Linear_0` of torch/csrc/autograd/profiler_python.cpp, `nn.Module: head (Linear)` of
instrument/torch.py."""
BACKWARD_BEGINS = "nn.Module backward: "
BACKWARD_ENDS = "nn.Module backward done: "
NODE = "autograd::engine::evaluate_function: "
"""torch/csrc/autograd/engine.cpp records each node under this name."""
# `train.py(12): step` as PyTorch's profiler writes frames, `$train.py:12 step` as XLA's does.
_FRAME = re.compile(
    r"^\$?(?P<file>(?:[A-Za-z]:)?[^(:]*\.py)[(:](?P<line>\d+)\)?:? (?P<function>\S.*)$"
)
_FRAMEWORK_FILE = re.compile(
    r"(^|/)(torch|tensorflow|keras|jax|jaxlib|flax|numpy)/|(site|dist)-packages/|^<frozen"
    r"|(^|/)(threading|contextlib|runpy|functools)\.py$|(^|/)(api|pjit|profiler|array|dispatch|ufunc_api|core|traceback_util|pxla)\.py$"
)


class Origins(Struct, frozen=True):
    """Where events come from; columns of shape (events,). Device events count as their launch."""

    node: Int32
    """The autograd node around the event, -1 outside the backward pass."""
    forward: Int32
    """The forward operator of that node; -1 where there is none."""
    module: Int32
    """Index of `names`, -1 unknown."""
    line: Int32
    """Index of `lines`, -1 unknown."""
    names: tuple[str, ...]
    """Of modules, as the profile calls them."""
    lines: tuple[str, ...]
    """Of source: `train.py:12 step`."""

    def module_of(self, row: int) -> str | None:
        """The module of an event, None where the profile does not tell."""
        at = int(self.module[row])
        return self.names[at] if at >= 0 else None

    def line_of(self, row: int) -> str | None:
        """The user's own line of an event, None where the profile does not tell."""
        at = int(self.line[row])
        return self.lines[at] if at >= 0 else None


def find_origins(trace: Trace, launching_operator: Int32) -> Origins:
    """The autograd node, the forward operator, the module and the line of each event.

    Args:
        trace: The trace.
        launching_operator: For each event, the innermost operator around it; shape (events,).
    """
    events = trace.events
    module_of: dict[str, int] = {}
    of_name = np.full(len(trace.strings) + 1, -1, dtype=np.int32)
    for index in _starting(trace, MODULE):
        label = trace.strings[index].removeprefix(MODULE)
        of_name[index] = module_of.setdefault(label, len(module_of))
    is_range = (events.kind == EventKind.PYTHON) | (events.kind == EventKind.ANNOTATION)
    scope = nearest(events.parent, is_range & (of_name[events.name] >= 0))
    is_engine = is_in(events.name, _starting(trace, NODE))
    # The engine's event around a node's function lacks its number where a hook ran in between.
    linked = events.forward.copy()
    inner = np.flatnonzero((linked >= 0) & (events.parent >= 0))
    inner = inner[is_engine[events.parent[inner]]]
    linked[events.parent[inner]] = linked[inner]
    node = nearest(events.parent, (linked >= 0) | is_engine)
    # What a node computes anew (checkpointing) runs within its module as the first time.
    node = np.where(scope > node, -1, node)
    forward = np.where(node >= 0, linked[node], -1)
    origin = np.where(node < 0, scope, np.where(forward >= 0, scope[forward], -1))
    module = np.where(origin >= 0, of_name[events.name[origin]], -1)
    _add_begun(trace, node, (node >= 0) & (forward < 0), module, module_of)
    own_line, lines = _lines(trace, launching_operator)
    # What Python ran around a node is at best the call of `backward()`.
    line = np.where(node < 0, own_line, np.where(forward >= 0, own_line[forward], -1))
    host = np.where(events.launched_by >= 0, events.launched_by, np.arange(len(events)))
    return Origins(
        node=_frozen(node[host]),
        forward=_frozen(forward[host]),
        module=_frozen(module[host]),
        line=_frozen(line[host]),
        names=tuple(module_of),
        lines=lines,
    )


def _lines(trace: Trace, launching_operator: Int32) -> tuple[Int32, tuple[str, ...]]:
    """The line of each event by what its thread ran, and the lines' texts."""
    events, table = trace.events, trace.operators
    index_of: dict[str, int] = {}
    # One more than there are strings: what index -1 means.
    of_name = np.full(len(trace.strings) + 1, -1, dtype=np.int32)
    is_python = events.kind == EventKind.PYTHON
    for name in distinct(events.name[is_python]).tolist():
        frame = user_line(trace.strings[name])
        if frame is not None:
            of_name[name] = index_of.setdefault(frame, len(index_of))
    line = np.full(len(events), -1, dtype=np.int32)
    if index_of:
        frames = nearest(events.parent, is_python & (of_name[events.name] >= 0))
        line = np.where(frames >= 0, of_name[events.name[frames]], -1)
    if (table.frame >= 0).any():
        # A call stack of the operator's own says more than the frames around it.
        for name in distinct(table.frame[table.frame >= 0]).tolist():
            of_name[name] = index_of.setdefault(trace.strings[name], len(index_of))
        stack = trace.by_event(table.row, of_name[table.frame], -1)
        own = np.where(launching_operator >= 0, stack[launching_operator], -1)
        line = np.where(own >= 0, own, line)
    return line, tuple(index_of)


def node_name(trace: Trace, node: int) -> str:
    """What autograd calls a node: `GatherBackward0`."""
    return trace.name(node).removeprefix(NODE)


def nearest(parent: Int32, is_mark: NDArray[np.bool_]) -> Int32:
    """For each event the innermost marked one that encloses it, itself included.

    Args:
        parent: Shape (events,).
        is_mark: Shape (events,).

    Returns:
        Shape (events,), rows; -1 for none.
    """
    count = len(parent)
    if not is_mark.any():
        return np.full(count, -1, dtype=np.int32)
    # Each points to its parent, marks to themselves: following pointers of pointers, as many
    # passes as the depth has binary digits find the mark.
    found = np.where(is_mark, np.arange(count, dtype=np.int32), parent)
    rows = np.flatnonzero((found >= 0) & ~is_mark)
    while rows.size:
        further = found[found[rows]]
        # A row that points to a mark, or to nothing, has arrived.
        found[rows] = further
        rows = rows[(further >= 0) & ~is_mark[further]]
    return found


def _starting(trace: Trace, prefix: str) -> list[int]:
    """Strings with a prefix."""
    return [index for index, text in enumerate(trace.strings) if text.startswith(prefix)]


def _add_begun(
    trace: Trace,
    node: Int32,
    is_open: NDArray[np.bool_],
    module: Int32,
    module_of: dict[str, int],
) -> None:
    """Give nodes the module whose backward pass has begun on their thread.

    Args:
        trace: The trace.
        node: For each event its node.
        is_open: Which events lie in a node whose forward operator is not recorded.
        module: Is changed there.
        module_of: Indices of modules by label; those that only marks name are added.
    """
    events = trace.events
    begins, ends = _starting(trace, BACKWARD_BEGINS), _starting(trace, BACKWARD_ENDS)
    if not begins or not is_open.any():
        return
    marks = trace.rows(EventKind.ANNOTATION)
    marks = marks[is_in(events.name[marks], begins + ends)]
    for track in distinct(events.track[marks]).tolist():
        own = marks[events.track[marks] == track]
        current, begun_in = -1, -1
        states = [-1]
        for row in own.tolist():
            text = trace.name(row)
            if text.startswith(BACKWARD_ENDS):
                label = text.removeprefix(BACKWARD_ENDS)
                if module_of.get(label) == current:
                    current = _outer(label, module_of)
            else:
                label = text.removeprefix(BACKWARD_BEGINS)
                index = module_of.setdefault(label, len(module_of))
                # One node ends the forward pass of several, the innermost first.
                if node[row] != begun_in:
                    current, begun_in = index, int(node[row])
            states.append(current)
        rows = np.flatnonzero(is_open & (events.track == track))
        # A mark lies within the node that it speaks of.
        slot = np.searchsorted(events.start_ns[own], events.end_ns[node[rows]], side="right")
        module[rows] = np.array(states)[slot]


def _outer(label: str, module_of: dict[str, int]) -> int:
    """The innermost known module around `encoder.layers.0 (Block)`; -1 for none."""
    path = label.split(" ", 1)[0]
    by_path = {known.split(" ", 1)[0]: index for known, index in module_of.items()}
    while "." in path:
        path = path.rpartition(".")[0]
        if path in by_path:
            return by_path[path]
    return -1


def _frozen(column: NDArray[np.integer]) -> Int32:
    frozen = column.astype(np.int32)
    frozen.setflags(write=False)
    return frozen


def user_line(frame: str) -> str | None:
    """`src/train.py:12 step` of a frame's name; None for the framework's own."""
    found = _FRAME.match(frame)
    if found is None or _FRAMEWORK_FILE.search(found["file"]):
        return None
    file = "/".join(found["file"].replace("\\", "/").split("/")[-2:])
    return f"{file}:{found['line']} {found['function']}"
