"""Python functions that a compiled program calls.

JAX compiles `pure_callback`, `io_callback`, `debug.callback` and `debug.print` into operations
that run the function on the host: a custom call on the CPU and on GPUs, where it copies its
operands to the host, waits, and copies the results back; sends and receives on a TPU. In
TensorFlow they are the operators of `py_function` and `numpy_function`.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.causes import HOST_CAUSED, Cause
from tb_perfadvisor.signals.input.tfdata import python_calls, python_functions
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.transfers import transfer_rows, transfer_waits
from tb_perfadvisor.signals.tpu.xla_operations import has_tiled_layouts
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import is_in, places_by_value, without
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    clip,
    crowded,
    intersect,
    join,
    minus,
    union,
)
from tb_perfadvisor.trace.tables import Int32

# jax/_src/interpreters/mlir.py and jax/_src/callback.py: what its primitives are lowered to.
_TARGET = r'custom_call_target="xla_(?:ffi_)?(?:partitioned_)?(?:buffer_)?python_\w*callback"'
_PRIMITIVE = r"(?:^|/)(?:pure_callback|io_callback|debug_callback|debug_print)(?:$|[\[:/])"


class HostCallbacks(msgspec.Struct, frozen=True):
    """Calls in the used window, and the time that the step spends on them."""

    rows: Int32
    """Events of the calls: operators on the host, else operations of the device."""
    count: int
    waits: Intervals
    """When the device, or the other operators of the step on the CPU, wait for them."""
    beside: Intervals = EMPTY
    """On a CPU-only capture, when they take a core from operators that run beside them."""


@memoized
def host_callbacks(signals: Signals) -> HostCallbacks:
    """Calls of Python from the step, without those of the input pipeline."""
    framework = signals.trace.source.framework
    if framework == "jax":
        return _of_jax(signals)
    if framework == "tensorflow":
        return _of_tensorflow(signals)
    return HostCallbacks(np.empty(0, dtype=np.int32), 0, EMPTY)


def is_callback(text: str, path: str) -> bool:
    """Whether an XLA operation runs a Python function on the host.

    `text` is its HLO, and `path` its name in the framework.
    """
    if "callback" not in text and "callback" not in path and "debug_print" not in path:
        return False
    is_call = re.search(_TARGET, text) is not None
    return is_call or (" custom-call(" in text and re.search(_PRIMITIVE, path) is not None)


def _of_jax(signals: Signals) -> HostCallbacks:
    if has_tiled_layouts(signals):
        rows = transfer_rows(signals)
        # Each call sends, receives or both, and waits once for each of them.
        return HostCallbacks(rows, _executions(signals, rows), transfer_waits(signals))
    rows = _in_window(signals, _executed(signals.trace))
    if signals.device.is_host_only:
        return _on_host(signals, rows)
    # The device copies for a call; the function runs between the copies.
    waits = _idle_after(signals, rows)
    return HostCallbacks(rows, _executions(signals, rows), waits)


def _of_tensorflow(signals: Signals) -> HostCallbacks:
    calls = without(python_calls(signals.trace), python_functions(signals))
    rows = _in_window(signals, calls)
    if signals.device.is_host_only:
        return _on_host(signals, rows)
    events = signals.trace.events
    running = events.spans(rows)
    return HostCallbacks(rows, len(rows), intersect(signals.host_idle, running))


def _executed(trace: Trace) -> Int32:
    """Executions of operations that run a Python function on the host, in order of start."""
    hlo, events = trace.hlo, trace.hlo_events
    meant = [
        is_callback(text, path)
        for text, path in zip(trace.texts(hlo.text), trace.texts(hlo.path), strict=True)
    ]
    is_meant: NDArray[np.bool_] = np.array([*meant, False], dtype=bool)
    return np.sort(events.row[is_meant[events.op]])


def _in_window(signals: Signals, rows: Int32) -> Int32:
    return signals.steps.own(rows)


def _executions(signals: Signals, rows: Int32) -> int:
    """How many calls there were, of each of which several operations or copies may show."""
    table = signals.trace.hlo_events
    op = signals.trace.by_event(table.row, table.op, -1)[rows]
    known, count = np.unique(op[op >= 0], return_counts=True)
    return int(count.max(initial=0)) if len(known) else 0


def _on_host(signals: Signals, rows: Int32) -> HostCallbacks:
    """Calls of a CPU-only capture. The step waits for them while no other thread computes."""
    trace, window = signals.trace, signals.attribution
    events, operators = trace.events, trace.rows(EventKind.OPERATOR)
    operators = without(operators, rows)
    computing = {
        track: events.spans(operators[places])
        for track, places in places_by_value(events.track[operators])
    }
    # Another thread computes where several threads do, or one that is not the call's own.
    several = crowded(*computing.values())
    single = minus(join(*computing.values()), several)
    alone, calls = [], []
    for track, places in places_by_value(events.track[rows]):
        running = events.spans(rows[places])
        own = intersect(running, intersect(computing.get(track, EMPTY), single))
        busy = join(intersect(running, several), intersect(running, single))
        alone.append(join(minus(running, busy), own))
        calls.append(running)
    start_ns, end_ns = window.window_start_ns, window.window_end_ns
    waits = clip(join(*alone), start_ns, end_ns)
    beside = minus(clip(join(*calls), start_ns, end_ns), waits)
    return HostCallbacks(rows, len(rows), waits, beside)


def _idle_after(signals: Signals, rows: Int32) -> Intervals:
    """Idle time of the device right after its part in a call."""
    idle, events = signals.attribution.idle, signals.trace.events
    follows = is_in(idle.start_ns, events.end_ns[rows])
    gaps = union(idle.start_ns[follows], idle.end_ns[follows])
    return intersect(signals.attribution.of(*HOST_CAUSED, Cause.QUEUED), gaps)
