"""What the call stack of an allocation says about the tensor: which operator made it, and for whom.

Frames of C++ name the operator (`at::_ops::softmax_int::call`) and the node of the backward pass
(`torch::autograd::generated::BmmBackward0::apply`). Without them, functions of PyTorch's Python
files do (`torch/functional.py einsum`). Autograd's own threads run no Python: in a history with
Python frames alone, what they allocate has no stack.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.snapshots.course import Allocations, Course
from tb_perfadvisor.signals.snapshots.memory_course import memory_course
from tb_perfadvisor.trace.memory_snapshot import Frame, MemorySnapshot

_OPERATOR = re.compile(r"at::_ops::(\w+?)(?:_(?:Tensor|Scalar|int|dim|out|self)\w*)?::call")
_NODE = re.compile(r"(?:^|::)(\w+?Backward\d*|AccumulateGrad)(?:_apply_functional|::apply|\()")
_ENGINE = re.compile(r"torch::autograd::Engine::|torch/autograd/(?:__init__|graph)\.py$")
_OPTIMIZER = re.compile(
    r"(?:torch/optim|deepspeed/runtime|bitsandbytes/optim|torch/distributed/optim)/"
)
_AUTOCAST = re.compile(r"at::autocast::cached_cast")
_PYTHON = re.compile(r"\.py$|^<ipython|^/tmp/ipykernel")
_CALLING = re.compile(r"torch/nn/modules/module\.py$|torch/_dynamo/|torch/utils/_contextlib\.py$")
"""Calls a module, or a decorated function."""
_WRITTEN = re.compile(
    r"torch/(?:functional|_tensor|nn/functional|nn/modules/\w+)\.py$|(?:^|/)einops/"
)
"""Functions of these files are named like the operators that they call."""
_MAKERS = re.compile(
    r"^(?:_apply|convert|_?load_\w+|init_\w*weight\w*|from_pretrained|reset_parameters)$"
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


_UNKNOWN = Site("", "", False, False, False, False, ())


class Sites(Struct, frozen=True):
    """The sites of a snapshot's stacks."""

    of_stacks: tuple[Site, ...]
    """One for each stack, and a last one for allocations without a stack."""

    def of(self, stack: int) -> Site:
        """The site of a stack, also of `NO_STACK`."""
        return self.of_stacks[stack]

    def are(self, allocations: Allocations, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which allocations have a stack for which a column holds.

        Args:
            allocations: Of the snapshot.
            chosen: One value for each of `of_stacks`.
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
    python = []
    for frame in frames:
        file = frame.file.replace("\\", "/")
        if _PYTHON.search(file):
            is_backward |= _ENGINE.search(file) is not None
            is_optimizer |= _OPTIMIZER.search(file) is not None
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
