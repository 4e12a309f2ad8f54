"""Loops over parameters: optimizers that update, or zero gradients of, one parameter at a time."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, KernelFamily
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    clip,
    contains,
    intersect,
    minus,
)
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.tables import Int32

_MANY = 10
"""With this many parameters, a loop costs more than one call for all."""
# Kernels over lists of tensors: torch's foreach and fused optimizers, and apex's.
_OF_LISTS = regex(r"_foreach_|_fused_|multi_tensor_apply|Optimizer\.step#Fused")
_ZEROING = regex(r"^aten::(zero_|fill_)$")
# PyTorch's optimizers with a fused form on the CPU (2.4): torch/optim/*.py.
_FUSED_ON_CPU = regex(r"^Optimizer\.step#(Adam|AdamW|Adagrad|SGD)\.step$")


class HostLoop(Struct, frozen=True):
    """A loop over parameters with at least one launch for each."""

    steps: Intervals
    """When the optimizer's method runs on the step thread, in the used window."""
    operators: Int32
    """The loop's outermost operators; empty if there is no such loop."""
    kernels: Int32
    """Device events that they launched."""
    idle: Intervals
    """Idle time that the host causes meanwhile, without what synchronizations induce."""

    @property
    def is_loop(self) -> bool:
        """Whether parameters are processed one by one."""
        return len(self.operators) > 0


@memoized
def optimizer_loop(signals: Signals) -> HostLoop:
    """`Optimizer.step`, if it launches for each parameter separately."""
    return _loop(signals, re.compile(r"^Optimizer\.step#"), re.compile("^aten::"))


@memoized
def zeroing_loop(signals: Signals) -> HostLoop:
    """`Optimizer.zero_grad`, if it zeros each gradient separately."""
    return _loop(signals, re.compile(r"^Optimizer\.zero_grad#"), _ZEROING)


class HostUpdates(Struct, frozen=True):
    """Updates of parameters on the CPU by an optimizer that has a fused form there."""

    name: str
    """Its class, such as `AdamW`."""
    steps: Intervals
    """When it runs, in the used window."""
    operators: Int32
    """The operators that it calls."""
    has_momentum: bool
    is_fused: bool


@memoized
def host_updates(signals: Signals) -> HostUpdates | None:
    """What `Optimizer.step` does in a program on the CPU; None of optimizers without fused form."""
    if not signals.device.is_host_only:
        return None
    trace, events = signals.trace, signals.trace.events
    calls = signals.steps.own(trace.rows(EventKind.ANNOTATION))
    calls = calls[events.track[calls] == signals.step_track]
    calls = calls[named(trace, calls, _FUSED_ON_CPU)]
    if not len(calls):
        return None
    found = _FUSED_ON_CPU.match(trace.name(int(calls[0])))
    assert found is not None
    spans = clip(
        events.spans(calls),
        signals.attribution.window_start_ns,
        signals.attribution.window_end_ns,
    )
    operators = trace.rows(EventKind.OPERATOR)
    operators = operators[events.track[operators] == signals.step_track]
    operators = operators[contains(spans, events.start_ns[operators])]
    names = {trace.strings[name] for name in distinct(events.name[operators]).tolist()}
    return HostUpdates(
        name=found[1],
        steps=spans,
        operators=operators,
        has_momentum="aten::mul_" in names,
        is_fused=any("_fused_" in name for name in names),
    )


_FEWEST_KERNELS = 100
"""Ten operations for each of ten parameters."""


@memoized
def updating_kernels(signals: Signals) -> Int32:
    """The elementwise kernels that end the steps, if they are many and of single tensors.

    Backward passes end with products and sums; what follows tensor by tensor is an update.
    """
    trace, events, steps = signals.trace, signals.trace.events, signals.steps
    rows = signals.device.rows[steps.owner[signals.device.rows] >= 0]
    step, place, kind = steps.owner[rows], np.arange(len(rows)), events.kind[rows]
    family = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)[rows]
    is_other = (kind == EventKind.COLLECTIVE) | (kind == EventKind.KERNEL)
    is_other &= family != KernelFamily.ELEMENTWISE
    last = np.full(len(steps) + 1, -1)
    np.maximum.at(last, step[is_other], place[is_other])
    is_last = (kind == EventKind.KERNEL) & (place > last[step])
    names = {trace.strings[name] for name in distinct(events.name[rows[is_last]])}
    count = np.bincount(step[is_last], minlength=len(steps))
    is_many = len(steps) > 0 and np.median(count) >= _FEWEST_KERNELS
    chosen: Int32 = rows[is_last & (is_many and not any(map(_OF_LISTS.search, names)))]
    return chosen


def _loop(signals: Signals, method: re.Pattern[str], belongs: re.Pattern[str]) -> HostLoop:
    trace, window = signals.trace, signals.attribution
    events, strings = trace.events, trace.strings
    none = np.empty(0, dtype=np.int32)
    calls = trace.rows(EventKind.ANNOTATION)
    calls = calls[events.track[calls] == signals.step_track]
    calls = calls[named(trace, calls, method)]
    spans = clip(
        events.spans(calls),
        window.window_start_ns,
        window.window_end_ns,
    )
    if len(spans) == 0:
        return HostLoop(EMPTY, none, none, EMPTY)
    operators = trace.rows(EventKind.OPERATOR)
    on_thread = events.track[operators] == signals.step_track
    operators = operators[on_thread & contains(spans, events.start_ns[operators])]
    kernels = launched_in(signals, spans)
    used = {strings[i] for i in distinct(events.name[np.concatenate((operators, kernels))])}
    used |= {strings[i] for i in distinct(events.name[calls])}
    matching = operators[named(trace, operators, belongs)]
    _, count = np.unique(events.name[matching], return_counts=True)
    if any(_OF_LISTS.search(name) for name in used) or (
        max(count.tolist(), default=0) < _MANY * len(spans) or len(kernels) < _MANY * len(spans)
    ):
        return HostLoop(spans, none, none, EMPTY)
    is_matching = np.zeros(len(events), dtype=bool)
    is_matching[matching] = True
    parent = events.parent[matching]
    outermost = matching[~((parent >= 0) & is_matching[parent])]
    idle = minus(intersect(signals.host_idle, spans), signals.synchronizations.induced)
    return HostLoop(spans, outermost, kernels, idle)


def launched_in(signals: Signals, spans: Intervals) -> Int32:
    """What the thread of the steps launched in some time, whenever it ran."""
    events = signals.trace.events
    rows = np.flatnonzero(events.launched_by >= 0).astype(np.int32)
    launches = events.launched_by[rows]
    is_own = events.track[launches] == signals.step_track
    owned: Int32 = rows[is_own & contains(spans, events.start_ns[launches])]
    return owned
