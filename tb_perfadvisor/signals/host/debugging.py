"""Debugging modes, and garbage collection.

* *Blocking launches* (`CUDA_LAUNCH_BLOCKING=1`): each launch returns after its kernel. Otherwise
  a launch takes some microseconds however long its kernel is, so among kernels longer than any
  launch none lies within its own call: in 32 recorded profiles with 38,000 such kernels three
  did, two of them graphs.
* *Anomaly detection* (`torch.autograd.set_detect_anomaly`): autograd's engine itself, outside of
  a node's own function, asks of each output whether it has a NaN (torch/csrc/autograd/engine.cpp,
  `call_function`).
* *Filled memory* (`torch.use_deterministic_algorithms`, unless
  `torch.utils.deterministic.fill_uninitialized_memory` is off): `torch.empty`, which otherwise
  writes nothing, fills what it allocates (aten/src/ATen/native/TensorFactories.cpp).
* *Checked numbers* (`tf.debugging.enable_check_numerics`): TensorFlow adds two operators to each
  that returns floating-point numbers (tensorflow/python/debug/lib/check_numerics_callback.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.origins import NODE
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.intervals import Intervals
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.tables import Int32

LONG_KERNEL_NS = 20_000
"""A launch takes 5 to 10 µs."""
MINIMUM_EVENTS = 20
"""Fewer long kernels, nodes or allocations could be chance."""
NEARLY_ALL = 0.95
"""Share of them. Modes that are on for only a part of the program are not detected."""
CLOCK_NS = 2_000
"""Clocks of host and device agree to about a microsecond."""

_CHECKS = ("aten::isnan", "aten::_is_any_true", "aten::any", "aten::item")
_ALLOCATIONS = ("aten::empty", "aten::empty_strided", "aten::empty_permuted")
_FILL = "aten::fill_"
_NUMBER_CHECKS = ("CheckNumericsV2", "DebugNumericSummaryV2")
"""What a program calls by itself is `CheckNumerics`."""
_NO_OUTPUT = f"{NODE}torch::autograd::AccumulateGrad"


class Debugging(Struct, frozen=True):
    """Effects of debugging modes: rows in order of start, empty if a mode is off."""

    blocked: Int32
    """Kernels whose launch returned after them."""
    checks: Int32
    """Operators of autograd's engine that look for NaNs."""
    fills: Int32
    """Operators that fill memory which the program did not ask to fill."""
    number_checks: Int32
    """Operators of TensorFlow that look for infinities and NaNs in what others return."""


@memoized
def debugging(signals: Signals) -> Debugging:
    """The modes that are on."""
    trace = signals.trace
    wanted = {*_CHECKS, *_ALLOCATIONS, _FILL}
    index_of = {
        text: index
        for index, text in enumerate(trace.strings)
        if text in wanted or text.startswith(NODE)
    }
    return Debugging(
        *(_blocked(trace), _checks(trace, index_of), _fills(trace, index_of)),
        _number_checks(trace),
    )


def _blocked(trace: Trace) -> Int32:
    events = trace.events
    rows = trace.rows(EventKind.KERNEL)
    rows = rows[events.launched_by[rows] >= 0]
    # One launch of a graph starts many kernels.
    per_call = np.bincount(events.launched_by[rows], minlength=1)
    rows = rows[per_call[events.launched_by[rows]] == 1]
    call = events.launched_by[rows]
    inside = (events.start_ns[rows] >= events.start_ns[call] - CLOCK_NS) & (
        events.end_ns[rows] <= events.end_ns[call] + CLOCK_NS
    )
    return _if_nearly_all(inside[events.duration_ns[rows] > LONG_KERNEL_NS], rows[inside])


def _checks(trace: Trace, index_of: Mapping[str, int]) -> Int32:
    events = trace.events
    engine = [text for text in index_of if text.startswith(NODE) and text != _NO_OUTPUT]
    nodes = _operators(trace, index_of, engine)
    rows = _within(trace, _operators(trace, index_of, _CHECKS), nodes)
    first = rows[events.name[rows] == index_of.get(_CHECKS[0], -1)]
    return _if_nearly_all(is_in(nodes, events.parent[first]), rows)


def _fills(trace: Trace, index_of: Mapping[str, int]) -> Int32:
    allocations = _operators(trace, index_of, _ALLOCATIONS)
    rows = _within(trace, _operators(trace, index_of, (_FILL,)), allocations)
    return _if_nearly_all(is_in(allocations, trace.events.parent[rows]), rows)


def _number_checks(trace: Trace) -> Int32:
    kinds = [n for n, text in enumerate(trace.strings) if text.endswith(_NUMBER_CHECKS)]
    rows = trace.rows(EventKind.OPERATOR)
    found: Int32 = rows[is_in(trace.events.name[rows], kinds)]
    return found if len(found) >= MINIMUM_EVENTS else found[:0]


def _if_nearly_all(holds: NDArray[np.bool_], rows: Int32) -> Int32:
    """The rows if something holds for nearly all of enough events; else none."""
    is_rule = len(holds) >= MINIMUM_EVENTS and float(holds.mean()) >= NEARLY_ALL
    return rows if is_rule else rows[:0]


def _operators(trace: Trace, index_of: Mapping[str, int], names: Iterable[str]) -> Int32:
    wanted = [index_of[name] for name in names if name in index_of]
    rows = trace.rows(EventKind.OPERATOR)
    matching: Int32 = rows[is_in(trace.events.name[rows], wanted)]
    return matching


def _within(trace: Trace, rows: Int32, owners: Int32) -> Int32:
    """Rows whose parent is one of the owners."""
    children: Int32 = rows[is_in(trace.events.parent[rows], owners)]
    return children


# PyTorch's collector events (record_python_gc_info), and gc.collect() as PyTorch's and XLA's
# Python tracers name it.
_COLLECTING = regex(r"^(?:Python GC|<built-in function collect>|\$gc collect)$")


@memoized
def garbage_collections(signals: Signals) -> tuple[Int32, Intervals]:
    """Rows of the collections on all threads, and when they ran. All threads wait for them."""
    trace = signals.trace
    events, rows = trace.events, trace.rows(EventKind.PYTHON)
    rows = rows[named(trace, rows, _COLLECTING)]
    return rows, events.spans(rows)
