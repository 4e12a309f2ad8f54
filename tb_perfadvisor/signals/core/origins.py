"""Which module and which source line an event comes from, also in the backward pass.

A forward operator lies within its module's `nn.Module:` range: a Python frame of PyTorch's
profiler, or a label of `tb_perfadvisor.instrument.torch`. A backward operator lies within an
autograd node. The node's sequence number leads to its forward operator, and so to the module and
the line. If the forward operator is not in the profile, labels tell which module's backward pass
has begun.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value
from tb_perfadvisor.trace.names import is_framework_file, is_generated
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.tables import Int32, repeated

MODULE = "nn.Module: "
"""`nn.Module: Linear_0` of torch/csrc/autograd/profiler_python.cpp, `nn.Module: head (Linear)` of
instrument/torch.py."""
BACKWARD_BEGINS = "nn.Module backward: "
BACKWARD_ENDS = "nn.Module backward done: "
NODE = "autograd::engine::evaluate_function: "
"""torch/csrc/autograd/engine.cpp records each node under this name."""
# `train.py(12): step` as PyTorch's profiler writes frames, `$train.py:12 step` as XLA's does.
_FRAME = regex(r"^\$?(?P<file>(?:[A-Za-z]:)?[^(:]*\.py)[(:](?P<line>\d+)\)?:? (?P<function>\S.*)$")


class Origins(Struct, frozen=True):
    """Origins of events; columns of shape (events,). A device event has its launch's origin."""

    node: Int32
    """The autograd node around the event; -1 outside the backward pass."""
    forward: Int32
    """The forward operator of that node; -1 for none."""
    scope: Int32
    """The innermost range of a module around it, or around its forward operator; -1 for none."""
    module: Int32
    """Index into `names`; -1 if unknown."""
    line: Int32
    """Index into `lines`; -1 if unknown."""
    names: tuple[str, ...]
    """Names of modules as in the profile."""
    lines: tuple[str, ...]
    """Source lines: `train.py:12 step`."""

    def module_of(self, row: int) -> str | None:
        """The module of an event; None if unknown."""
        at = int(self.module[row])
        return self.names[at] if at >= 0 else None

    def line_of(self, row: int) -> str | None:
        """The line of the user's code that an event comes from; None if unknown."""
        at = int(self.line[row])
        return self.lines[at] if at >= 0 else None


def find_origins(trace: Trace, launching_operator: Int32) -> Origins:
    """The autograd node, the forward operator, the module and the line of each event.

    `launching_operator` has the innermost operator around each event, shape (events,).
    """
    events = trace.events
    module_of: dict[str, int] = {}
    of_name = np.full(len(trace.strings) + 1, -1, dtype=np.int32)
    for index in starting(trace, MODULE):
        label = trace.strings[index].removeprefix(MODULE)
        of_name[index] = module_of.setdefault(label, len(module_of))
    is_range = is_in(
        events.kind, (EventKind.PYTHON, EventKind.ANNOTATION, EventKind.CAPTURED_RANGE)
    )
    scope = nearest(events.parent, is_range & (of_name[events.name] >= 0))
    is_engine = is_in(events.name, starting(trace, NODE))
    # If a hook ran in between, the engine's event around a node's function lacks the number.
    linked = events.forward.copy()
    inner = np.flatnonzero((linked >= 0) & (events.parent >= 0))
    inner = inner[is_engine[events.parent[inner]]]
    linked[events.parent[inner]] = linked[inner]
    node = nearest(events.parent, (linked >= 0) | is_engine)
    # Recomputation (checkpointing) inside a node runs within its module, as in the forward pass.
    node = np.where(scope > node, -1, node)
    forward = np.where(node >= 0, linked[node], -1)
    origin = np.where(node < 0, scope, np.where(forward >= 0, scope[forward], -1))
    module = np.where(origin >= 0, of_name[events.name[origin]], -1)
    _set_begun_modules(trace, node, (node >= 0) & (forward < 0), module, module_of)
    host_line, lines = _lines(trace, launching_operator)
    # The Python frame around a node is at best the call of `backward()`.
    line = np.where(node < 0, host_line, np.where(forward >= 0, host_line[forward], -1))
    host = np.where(events.launched_by >= 0, events.launched_by, np.arange(len(events)))
    host[trace.captured.row] = trace.captured.operator
    return Origins(
        node=_frozen(node, host),
        forward=_frozen(forward, host),
        scope=_frozen(origin, host),
        module=_frozen(module, host),
        line=_frozen(line, host),
        names=tuple(module_of),
        lines=lines,
    )


def _lines(trace: Trace, launching_operator: Int32) -> tuple[Int32, tuple[str, ...]]:
    """The source line of each event from its thread's frames, and the lines' texts."""
    events, table = trace.events, trace.operators
    index_of: dict[str, int] = {}
    # One more element than strings, for index -1.
    of_name = np.full(len(trace.strings) + 1, -1, dtype=np.int32)
    is_python = events.kind == EventKind.PYTHON
    for name in distinct(events.name[is_python]).tolist():
        frame = user_line(trace.strings[name], trace.facts.program.files)
        if frame is not None:
            of_name[name] = index_of.setdefault(frame, len(index_of))
    line = np.full(len(events), -1, dtype=np.int32)
    if index_of:
        frames = nearest(events.parent, is_python & (of_name[events.name] >= 0))
        line = np.where(frames >= 0, of_name[events.name[frames]], -1)
    if (table.frame >= 0).any():
        # The operator's own call stack is more precise than the frames around it.
        for name in distinct(table.frame[table.frame >= 0]).tolist():
            of_name[name] = index_of.setdefault(trace.strings[name], len(index_of))
        stack = trace.by_event(table.row, of_name[table.frame], -1)
        stack_line = np.where(launching_operator >= 0, stack[launching_operator], -1)
        line = np.where(stack_line >= 0, stack_line, line)
    return line, tuple(index_of)


def node_name(trace: Trace, node: int) -> str:
    """Autograd's name of a node: `GatherBackward0`."""
    return trace.name(node).removeprefix(NODE)


def starting(trace: Trace, *prefixes: str) -> list[int]:
    """Indices of the strings with one of some prefixes."""
    return [index for index, text in enumerate(trace.strings) if text.startswith(prefixes)]


def _set_begun_modules(
    trace: Trace,
    node: Int32,
    has_no_forward: NDArray[np.bool_],
    module: Int32,
    module_of: dict[str, int],
) -> None:
    """Set the module of nodes without a forward operator, from the labels on their thread.

    `node` is that of each event. `module` is set for events in a node without a recorded forward
    operator. `module_of` are indices of modules by label; modules that only labels name are added.
    """
    events = trace.events
    begins, ends = starting(trace, BACKWARD_BEGINS), starting(trace, BACKWARD_ENDS)
    if not begins or not has_no_forward.any():
        return
    marks = trace.rows(EventKind.ANNOTATION)
    marks = marks[is_in(events.name[marks], begins + ends)]
    rows_of = np.flatnonzero(has_no_forward)
    rows_by_track = {
        track: rows_of[places] for track, places in places_by_value(events.track[rows_of])
    }
    for track, places in places_by_value(events.track[marks]):
        on_track = marks[places]
        current, begun_in = -1, -1
        states = [-1]
        for row in on_track.tolist():
            text = trace.name(row)
            if text.startswith(BACKWARD_ENDS):
                label = text.removeprefix(BACKWARD_ENDS)
                if module_of.get(label) == current:
                    current = _outer(label, module_of)
            else:
                label = text.removeprefix(BACKWARD_BEGINS)
                index = module_of.setdefault(label, len(module_of))
                # Several modules may begin their backward pass in one node, the innermost first.
                if node[row] != begun_in:
                    current, begun_in = index, int(node[row])
            states.append(current)
        rows = rows_by_track.get(track, rows_of[:0])
        # A label lies within the node that it refers to.
        slot = np.searchsorted(events.start_ns[on_track], events.end_ns[node[rows]], side="right")
        module[rows] = np.array(states)[slot]


def _outer(label: str, module_of: dict[str, int]) -> int:
    """The innermost known module around a label such as `encoder.layers.0 (Block)`; -1 for none."""
    path = label.split(" ", 1)[0]
    by_path = {known.split(" ", 1)[0]: index for known, index in module_of.items()}
    while "." in path:
        path = path.rpartition(".")[0]
        if path in by_path:
            return by_path[path]
    return -1


def _frozen(column: NDArray[np.integer], rows: NDArray[np.integer]) -> Int32:
    if not (column >= 0).any():
        return repeated(-1, len(rows), np.int32)
    frozen: Int32 = column.take(rows).astype(np.int32)
    frozen.setflags(write=False)
    return frozen


def user_line(frame: str, own: Collection[str] = ()) -> str | None:
    """`src/train.py:12 step` of a frame's name; None for a framework's or generated.

    XLA leaves directories out, so that only the names of the program's `own` files tell, if known.
    """
    found = _FRAME.match(frame)
    if found is None or is_framework_file(found["file"]) or is_generated(found["file"]):
        return None
    if own and frame.startswith("$") and found["file"] not in own:
        return None
    file = "/".join(found["file"].replace("\\", "/").split("/")[-2:])
    return f"{file}:{found['line']} {found['function']}"
