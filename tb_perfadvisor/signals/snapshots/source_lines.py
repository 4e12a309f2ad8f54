"""Which line of the program allocated memory, by the call stacks of a snapshot."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.origins import is_framework_file
from tb_perfadvisor.signals.snapshots.course import Allocations
from tb_perfadvisor.signals.snapshots.sites import site_of
from tb_perfadvisor.trace.memory_snapshot import Frame, Stacks

EARLIER = "allocated before the history, or by an unknown line"
OUTSIDE_PYTHON = "outside of Python, mostly by the backward pass"
"""Autograd's threads run no Python, so a history with Python's frames alone has none of theirs."""

_TRAINS = re.compile(r"torch/(?:autograd|optim)/\w+\.py$")
_PYTHON = re.compile(r"\.py$|^<ipython|^/tmp/ipykernel")
# What records the stack, and the allocator itself.
_RECORDER = re.compile(
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
