"""What tf.data's user functions run, and what the step waits for meanwhile."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.input.tfdata import ASYNCHRONOUS, READERS, tfdata
from tb_perfadvisor.signals.input.tfdata_nodes import enclosing
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, join, minus, union
from tb_perfadvisor.trace.tables import Int32


@cache
def _python_names() -> re.Pattern[str]:
    # tensorflow/python/ops/script_ops.py: py_function, numpy_function and from_generator.
    return re.compile(r":(Eager)?PyFunc(Stateless)?$")


@memoized
def python_functions(signals: Signals) -> Int32:
    """Rows of Python functions that tf.data calls.

    Excludes TensorFlow's own `Generator`s, which distribute batches to devices without Python.
    """
    return _in_pipelines(signals.trace, python_calls(signals.trace))


def python_calls(trace: Trace) -> Int32:
    """Rows of Python functions that TensorFlow calls, in pipelines and in steps."""
    return _rows_matching(trace, _python_names())


@memoized
def file_reads(signals: Signals) -> Int32:
    """Rows of whole files read by user functions (`tf.io.read_file`)."""
    return _in_pipelines(signals.trace, _rows_matching(signals.trace, _read_names()))


@cache
def _read_names() -> re.Pattern[str]:
    return re.compile(r":ReadFile$")


@memoized
def function_operators(signals: Signals) -> Int32:
    """Rows of all operators that tf.data's user functions run."""
    trace = signals.trace
    return _in_pipelines(trace, trace.rows(EventKind.OPERATOR, EventKind.INPUT_WORK))


def _in_pipelines(trace: Trace, rows: Int32) -> Int32:
    """The rows on tf.data's own threads or inside a run of one of its functions."""
    table = trace.iterators
    is_run = np.zeros(len(trace.events), dtype=bool)
    is_run[table.row[table.run != 0]] = True
    in_pipeline = trace.events.kind[rows] == EventKind.INPUT_WORK
    in_pipeline |= enclosing(trace, rows, is_run) >= 0
    pipeline_rows: Int32 = rows[in_pipeline]
    return pipeline_rows


def _rows_matching(trace: Trace, pattern: re.Pattern[str]) -> Int32:
    rows = trace.rows(EventKind.OPERATOR, EventKind.INPUT_WORK)
    names = trace.events.name[rows]
    wanted = [name for name in distinct(names).tolist() if pattern.search(trace.strings[name])]
    return rows[is_in(names, wanted)]


class StallParts(Struct, frozen=True):
    """The stall, split by what the pipelines do meanwhile; disjoint."""

    reading_on_demand: Intervals
    """File reads on the thread that waits."""
    reading_ahead: Intervals
    """File reads on background threads, which started too late."""
    preprocessing: Intervals
    """User functions, batching, shuffling and all other work of iterators."""
    unattributed: Intervals
    """The step waits, but no call of an iterator is visible."""


@memoized
def stall_parts(signals: Signals) -> StallParts:
    """What the pipelines do while the step waits for input."""
    pipelines, events = tfdata(signals), signals.trace.events
    reads = file_reads(signals)
    reading = union(events.start_ns[reads], events.end_ns[reads])
    on_demand, ahead, preprocessing = EMPTY, EMPTY, EMPTY
    for node in range(len(pipelines)):
        stall = pipelines.stall[node]
        read = stall if pipelines.kind[node] in READERS else intersect(stall, reading)
        if pipelines.is_ahead(node) or pipelines.kind[node] in ASYNCHRONOUS:
            ahead = join(ahead, read)
        else:
            on_demand = join(on_demand, read)
        preprocessing = join(preprocessing, minus(stall, read))
    attributed = join(on_demand, ahead, preprocessing)
    unattributed = minus(signals.attribution.intervals[Cause.INPUT], attributed)
    return StallParts(on_demand, ahead, preprocessing, unattributed)
