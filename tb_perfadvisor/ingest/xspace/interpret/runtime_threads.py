"""Finds the threads of runtime calls that a tracer wrote to separate lines.

A framework calls a PJRT plugin (libtpu) on its own thread. The plugin has a tracer of its own,
which writes what happens inside to another line. Both sides of the call carry the same context.

ROCm's tracer writes the calls to lines such as `Host Threads/2356`, whose numbers are not those of
the calling threads. The calls lie inside the executions of their thread, and inside the range with
the name of the same XLA operation.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xspace.decode.events import Line
from tb_perfadvisor.ingest.xspace.decode.planes import Plane
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.tables import Int64

# The type of the contexts of calls into a plugin (tsl/profiler/lib/context_types.h).
LIBRARY_CALL: Final = 14

_API_LINE: Final = "Host Threads/"
# Less than 1, because the caller's side of the first calls may not be recorded.
_MIN_ENCLOSED_SHARE: Final = 0.9
_RUN: Final = re.compile(
    r"[\w:]*(::ExecuteThunks|::EnqueueExecution|::LinearizeHostBufferInto|CopyToDevice\w*)\b"
    r"|DevicePut|PjitFunction\("
)


def threads_of_plugin_lines(plane: Plane) -> dict[int, tuple[int, str]]:
    """Find the thread of each line of a plugin's tracer.

    Returns:
        (thread, label) of the calling thread, by the id of the plugin's line.
    """
    caller_of: dict[int, Line] = {}
    entered: list[tuple[Line, Int64]] = []
    for threads in plane.events.in_batches(plane.lines):
        is_call = threads.numbers("_pt") == LIBRARY_CALL
        for line, place in threads.with_any(is_call):
            calls = threads.numbers("_p")[place][is_call[place]]
            caller_of |= dict.fromkeys(calls.tolist(), line)
        is_entry = threads.numbers("_ct") == LIBRARY_CALL
        for line, place in threads.with_any(is_entry):
            entered.append((line, threads.numbers("_c")[place][is_entry[place]]))
    found: dict[int, tuple[int, str]] = {}
    for line, contexts in entered:
        callers = Counter(
            (caller.id, caller.name)
            for context in contexts.tolist()
            if (caller := caller_of.get(context)) is not None and caller.id != line.id
        )
        for thread, count in callers.most_common(1):
            if count >= _MIN_ENCLOSED_SHARE * len(contexts):
                found[line.id] = thread
    return found


def threads_of_api_lines(plane: Plane) -> dict[int, tuple[int, str]]:
    """Find the thread of each line of runtime calls.

    Returns:
        (thread, label) of the calling thread, by the id of the line of calls.
    """
    if not any(line.name.startswith(_API_LINE) for line in plane.lines):
        return {}
    is_run = np.array([bool(_RUN.match(name)) for name in plane.metadata.names])
    runs = [
        (line, _spans(line, is_run[line.row]))
        for line, _ in plane.events.with_any(is_run[plane.events.row])
        if not line.name.startswith(_API_LINE)
    ]
    threads: dict[int, tuple[int, str]] = {}
    for calls in plane.lines:
        if not calls.name.startswith(_API_LINE) or not len(calls) or not runs:
            continue
        shares = [_enclosed(calls, spans).mean() for _, spans in runs]
        # Parallel threads enclose each other's calls; the operation distinguishes them.
        same = [_same_operation_share(calls, line) for line, _ in runs]
        order = sorted(range(len(runs)), key=lambda slot: (same[slot], shares[slot]))
        best = order[-1]
        if shares[best] >= _MIN_ENCLOSED_SHARE:
            line = runs[best][0]
            threads[calls.id] = (line.id, line.name)
    return threads


def _same_operation_share(calls: Line, line: Line) -> float:
    """The share of calls inside an event with the name of their XLA operation."""
    index, operations = calls.texts("hlo_op")
    if not operations:
        return 0.0
    row_of = {name: row for row, name in enumerate(line.names)}
    is_same = np.zeros(len(calls), dtype=bool)
    for slot, operation in enumerate(operations):
        row = row_of.get(operation)
        if row is not None:
            spans = _spans(line, line.row == row)
            is_same |= (index == slot) & _enclosed(calls, spans)
    return float(is_same.mean())


def _spans(line: Line, wanted: NDArray[np.bool_]) -> tuple[Int64, Int64]:
    start, end = line.start_ns[wanted], (line.start_ns + line.duration_ns)[wanted]
    order = np.argsort(start, kind="stable")
    # For nested runs: an event is enclosed if any run that started before it ends after it.
    return start[order], np.maximum.accumulate(end[order]) if order.size else end


def _enclosed(calls: Line, spans: tuple[Int64, Int64]) -> NDArray[np.bool_]:
    if not spans[0].size:
        return np.zeros(len(calls), dtype=bool)
    slot = last_before(spans[0], calls.start_ns)
    end = calls.start_ns + calls.duration_ns
    is_enclosed: NDArray[np.bool_] = (slot >= 0) & (end <= spans[1][np.maximum(slot, 0)])
    return is_enclosed
