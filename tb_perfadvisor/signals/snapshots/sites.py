"""Where a snapshot's memory was allocated, and which lines keep it from step to step.

What the call stack of an allocation says about the tensor: which operator made it, and for whom.

Frames of C++ name the operator (`at::_ops::softmax_int::call`) and the node of the backward pass
(`torch::autograd::generated::BmmBackward0::apply`). Without them, functions of PyTorch's Python
files do (`torch/functional.py einsum`). Autograd's own threads run no Python: in a history with
Python frames alone, what they allocate has no stack.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.snapshots.course import Allocations, Course, memory_course
from tb_perfadvisor.trace.memory_snapshot import Action, Frame, MemorySnapshot, Stacks
from tb_perfadvisor.trace.names import is_framework_file
from tb_perfadvisor.trace.tables import Int64

_OPERATOR = regex(r"at::_ops::(?=\w+::call)(\w+?)(?=_(?:Tensor|Scalar|int|dim|out|self)|::)")
_NODE = regex(r"(?:^|::)(\w+?Backward\d*|AccumulateGrad)(?:_apply_functional|::apply|\()")
_ENGINE = regex(r"torch::autograd::Engine::|torch/autograd/(?:__init__|graph)\.py$")
_OPTIMIZER = regex(r"(?:torch/optim|deepspeed/runtime|bitsandbytes/optim|torch/distributed/optim)/")
_CALLS_MODEL = "torch/nn/modules/module.py"
_CLOSURE = "closure"
"""In the names of functions that run forward and backward inside of an optimizer's step."""
_AUTOCAST = regex(r"at::autocast::cached_cast")
_PYTHON = regex(r"\.py$|^<ipython|^/tmp/ipykernel")
_CALLING = regex(r"torch/nn/modules/module\.py$|torch/_dynamo/|torch/utils/_contextlib\.py$")
"""Calls a module, or a decorated function."""
_WRITTEN = regex(r"torch/(?:functional|_tensor|nn/functional|nn/modules/\w+)\.py$|(?:^|/)einops/")
"""Functions of these files are named like the operators that they call."""
_MAKERS = regex(
    r"^(?:_apply|convert|_?load_\w+|init_(?=\w*weight)\w*|from_pretrained|reset_parameters)$"
)


class Site(Struct, frozen=True):
    """What a call stack says."""

    operator: str
    """The outermost operator, such as `einsum`; empty if unknown."""
    node: str
    """The node of the backward pass, such as `BmmBackward0`; empty outside, or if unknown."""
    is_backward: bool
    is_optimizer: bool
    is_autocast_copy: bool
    """A copy in 16 bits that autocast made of a parameter or an input, and keeps."""
    makes_weights: bool
    """Whether a function that loads or moves weights is on the stack."""
    frames: tuple[Frame, ...]
    """Frames of Python without those that only call modules, the innermost first."""


class Sites(Struct, frozen=True):
    """The sites of a snapshot's stacks."""

    of_stacks: tuple[Site, ...]
    """One for each stack, and a last one for allocations without a stack."""

    def of(self, stack: int) -> Site:
        """The site of a stack, also of `NO_STACK`."""
        return self.of_stacks[stack]

    def are(self, allocations: Allocations, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which allocations have a stack for which a column holds.

        `chosen` is the column, with a value for each of `of_stacks`.
        """
        # What was there before the history and has no stack is unknown, not autograd's.
        has_site = (allocations.stack >= 0) | (allocations.since > 0)
        found: NDArray[np.bool_] = chosen[allocations.stack] & has_site
        return found

    def flags(self, name: str) -> NDArray[np.bool_]:
        """A field that is true or false, of each site."""
        return np.array([bool(getattr(site, name)) for site in self.of_stacks], dtype=bool)


@memoized
def allocation_sites(signals: Signals) -> Sites | None:
    """The sites of the stacks of the worker's snapshot; None without one."""
    course = memory_course(signals)
    return None if course is None else sites_of(course)


def sites_of(course: Course) -> Sites:
    """The sites of a snapshot's stacks."""
    stacks = course.snapshot.stacks
    found = [site_of(stacks.of(stack)) for stack in range(len(stacks))]
    trains = any(site.is_backward or site.is_optimizer for site in found)
    trains = trains or _has_optimizer(course.snapshot)
    has_python = any(site.frames for site in found)
    without = Site("", "", trains and has_python, False, False, False, ())
    return Sites((*found, without))


def site_of(frames: tuple[Frame, ...]) -> Site:
    """What one call stack says."""
    operator = node = ""
    is_backward = is_optimizer = is_autocast = makes_weights = False
    in_closure = False
    python = []
    for frame in frames:
        file = frame.file.replace("\\", "/")
        if _PYTHON.search(file):
            is_backward |= _ENGINE.search(file) is not None
            in_closure |= is_backward or file.endswith(_CALLS_MODEL) or _CLOSURE in frame.function
            is_optimizer |= not in_closure and _OPTIMIZER.search(file) is not None
            makes_weights |= _MAKERS.match(frame.function) is not None
            if not _CALLING.search(file):
                python.append(frame)
            continue
        called = _OPERATOR.search(frame.function)
        if called:
            operator = called[1]
        named = _NODE.search(frame.function)
        if named and not node:
            node = named[1]
        is_backward |= _ENGINE.search(frame.function) is not None
        is_autocast |= _AUTOCAST.search(frame.function) is not None
    if not operator:
        operator = _written(python)
    is_backward |= bool(node)
    return Site(
        operator, node, is_backward, is_optimizer, is_autocast, makes_weights, tuple(python)
    )


def _written(python: list[Frame]) -> str:
    """The outermost function of PyTorch's own files on the inner end of a stack."""
    name = ""
    for frame in python:
        if not _WRITTEN.search(frame.file.replace("\\", "/")):
            break
        name = frame.function
    return name if name != "forward" else "linear" if _is_linear(python) else ""


def _is_linear(python: list[Frame]) -> bool:
    return any(frame.file.replace("\\", "/").endswith("nn/modules/linear.py") for frame in python)


def _has_optimizer(snapshot: MemorySnapshot) -> bool:
    return any(name.startswith("Optimizer.") for name in snapshot.annotations.names)


EARLIER = "allocated before the history, or by an unknown line"
OUTSIDE_PYTHON = "outside of Python, mostly by the backward pass"
"""Autograd's threads run no Python, so a history with Python's frames alone has none of theirs."""

_TRAINS = regex(r"torch/(?:autograd|optim)/\w+\.py$")
# What records the stack, and the allocator itself.
_RECORDER = regex(
    r"torch::unwind|CapturedTraceback|gather_with_cpp|CachingAllocator|^c10::|DeviceCachingAllocator"
)


class LineMemory(Struct, frozen=True):
    """Memory that one line of the program allocated."""

    line: str | None
    """`models/net.py:12 forward`; None if unknown."""
    count: int
    bytes: int
    stack: int
    """The stack with most of it; -1 if unknown."""
    tensor: str
    """What most of it is, by the operator or the node of the backward pass that made it: `einsum`,
    `BmmBackward0`; empty if unknown."""


def line_of(frames: tuple[Frame, ...]) -> str | None:
    """The innermost line of the program on a stack; else of a library; None without frames."""
    python = [frame for frame in frames if _PYTHON.search(frame.file)]
    for frame in python:
        if not is_framework_file(frame.file.replace("\\", "/")):
            return shown(frame)
    if python:
        return shown(python[0])
    # Of frames of C++, those that name an operator or a node say what the tensor is.
    tensor = site_of(frames)
    if tensor.node or tensor.operator:
        return tensor.node or tensor.operator
    for frame in frames:
        if frame.function and not _RECORDER.search(frame.function):
            return shown(frame)
    return None


def shown(frame: Frame) -> str:
    """A frame for users. Of its path only the last two parts, so that no directory leaks."""
    parts = [part for part in frame.file.replace("\\", "/").split("/") if part]
    if not parts or parts == ["??"]:
        return frame.function
    place = "/".join(parts[-2:])
    return f"{place}:{frame.line} {frame.function}" if frame.line else f"{place} {frame.function}"


def by_line(allocations: Allocations, stacks: Stacks) -> tuple[LineMemory, ...]:
    """Allocations by the program's line, the largest first."""
    if not len(allocations):
        return ()
    # Below the stacks: -1 for unknown ones, and -2 for those that have none though others do.
    trains = any(_TRAINS.search(frame.file.replace("\\", "/")) for frame in stacks.frames)
    is_outside = (allocations.stack < 0) & (allocations.since > 0) & trains
    key = np.where(is_outside, -2, allocations.stack)
    used, place = np.unique(key, return_inverse=True)
    size = np.bincount(place.ravel(), weights=allocations.bytes).astype(np.int64)
    count = np.bincount(place.ravel())
    lines: dict[str | None, LineMemory] = {}
    # The largest stack of each line comes first.
    for at in np.argsort(-size, kind="stable").tolist():
        stack = int(used[at])
        frames = stacks.of(stack)
        line = OUTSIDE_PYTHON if stack == -2 else line_of(frames)
        known = lines.get(line)
        tensor = site_of(frames)
        lines[line] = LineMemory(
            line,
            int(count[at]) + (known.count if known else 0),
            int(size[at]) + (known.bytes if known else 0),
            known.stack if known else max(stack, -1),
            known.tensor if known else tensor.node or tensor.operator,
        )
    return tuple(sorted(lines.values(), key=lambda held: (-held.bytes, held.line or "")))


_FEWEST = 3
_SLICES = 10
_STEPS = (
    regex(r"ProfilerStep#\d+$"),
    regex(r"Optimizer\.step#"),
    regex(r"Optimizer\.zero_grad#"),
)
"""What begins once in each step, the surest first."""
_NUMBER = regex(r"#\d+$")
_STEADY_SHARE = 0.5
"""While a program loads weights, it frees little of what it allocates."""


class Growth(Struct, frozen=True):
    """Memory by step, or by slice of the history; columns of shape (steps,)."""

    source: str
    """What the steps follow from: the name of an annotation, or equal slices of time."""
    is_inferred: bool
    """Whether they are slices."""
    state: Int64
    """The state at the end of each step."""
    allocated_bytes: Int64
    """At the end of each step; of slices, the least within each."""
    kept: Allocations
    """Allocated after the second step and before the last one, and never freed."""
    rows: Int64
    """Of the annotations that begin the steps; empty for slices."""


def growth(course: Course) -> Growth | None:
    """Memory by step; None without times, and if neither annotations nor frees tell of steps."""
    if not course.has_times:
        return None
    found = _annotated(course)
    if found is not None:
        source, ends, rows = found
        levels = course.allocated_bytes[ends]
    else:
        source, rows = f"{_SLICES} equal slices of time", np.empty(0, dtype=np.int64)
        edges = np.linspace(0, int(course.at_ns[-1]), _SLICES + 1)
        ends = np.searchsorted(course.at_ns, edges, side="right") - 1
        if not _turns_over(course, ends):
            return None
        levels = np.array(
            [
                course.allocated_bytes[begin : end + 1].min()
                for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
            ]
        )
        ends = ends[1:]
    all_of = course.allocations
    late = (all_of.since > ends[min(1, len(ends) - 1)]) & (all_of.since <= ends[-2])
    return Growth(
        source,
        found is None,
        ends,
        levels,
        all_of.select(late & (all_of.until >= len(course))),
        rows,
    )


class GrowingLine(Struct, frozen=True):
    """A line of the program whose allocations stay, step after step."""

    line: str
    kept: Allocations
    """After the second step and before the last one."""
    steps: int
    """The steps that it allocates in."""


def growing_lines(course: Course, found: Growth) -> tuple[GrowingLine, ...]:
    """Lines of which nothing is freed that they allocate after the second step; most bytes first.

    They allocate in several steps of both halves of the history, as a cache does that has no limit.
    """
    everything = course.allocations
    begin, end = int(found.state[min(1, len(found.state) - 1)]), int(found.state[-2])
    late = everything.select((everything.since > begin) & (everything.since <= end))
    stacks, place = np.unique(late.stack, return_inverse=True)
    line_of_stack = [line_of(course.snapshot.stacks.of(stack)) or "" for stack in stacks.tolist()]
    names, line = np.unique(line_of_stack, return_inverse=True)
    line = line[place] if len(stacks) else line
    grown = []
    for number, name in enumerate(names.tolist()):
        of_line = late.select(line == number)
        steps = np.unique(np.searchsorted(found.state, of_line.since))
        half = (begin + end) / 2
        is_spread = len(steps) >= _FEWEST and bool(
            (of_line.since <= half).any() and (of_line.since > half).any()
        )
        if name and is_spread and bool((of_line.until >= len(course)).all()):
            grown.append(GrowingLine(name, of_line, len(steps)))
    return tuple(sorted(grown, key=lambda each: -int(each.kept.bytes.sum())))


def _annotated(course: Course) -> tuple[str, Int64, Int64] | None:
    """What begins in each step, the states in which it begins, and its rows."""
    table = course.snapshot.annotations
    found: dict[str, list[int]] = defaultdict(list)
    of_device = np.flatnonzero(np.isin(table.device, (course.device, -1)))
    for row, name in zip(of_device.tolist(), table.name[of_device].tolist(), strict=True):
        found[_NUMBER.sub("#N", table.names[name])].append(row)
    origin_ns = int(course.snapshot.events.at_ns[course.rows[0]])
    chosen = next(
        (
            name
            for pattern in _STEPS
            for name, rows in found.items()
            if pattern.match(name.replace("#N", "#0")) and len(rows) >= _FEWEST
        ),
        None,
    )
    if chosen is None:
        return None
    rows = np.array(found[chosen])
    at = table.start_ns[rows] - origin_ns
    is_inside = (at >= 0) & (at <= course.at_ns[-1])
    rows, at = rows[is_inside], at[is_inside]
    if len(at) < _FEWEST:
        return None
    return chosen.replace("#N", ""), np.searchsorted(course.at_ns, at, side="right") - 1, rows


def _turns_over(course: Course, ends: Int64) -> bool:
    """Whether each slice works like one or more whole steps.

    It frees a good part of what it allocates, and allocates as much as lies between the emptiest
    and the fullest moment. In a single pass through the layers, slices allocate less.
    """
    size = course.snapshot.events.size_bytes[course.rows]
    totals = []
    for action in (Action.ALLOCATE, Action.FREE):
        places = course.places(action)
        done = np.zeros(len(course), dtype=np.int64)
        done[places + 1] = size[places]
        totals.append(np.diff(np.cumsum(done)[ends]))
    allocated, freed = totals
    range_bytes = int(np.ptp(course.allocated_bytes))
    is_whole = (allocated > 0) & (allocated >= range_bytes)
    return bool(is_whole.all() and (freed >= _STEADY_SHARE * allocated).all())
