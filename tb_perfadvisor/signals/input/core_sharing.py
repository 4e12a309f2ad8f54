"""How much processor time preparing input takes while the step computes on the same cores.

Nothing waits when batches are ready in time. But a program on the CPU has one set of cores: what
input takes of them, the step lacks. For tf.data, threads of the input pipeline are events like any
other; for worker processes of a DataLoader, marks tell their processor time.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.input.host_loading import innermost_time
from tb_perfadvisor.signals.input.loader_workers import WorkerBatches, worker_batches
from tb_perfadvisor.signals.input.tfdata import (
    ASYNCHRONOUS,
    READERS,
    file_reads,
    python_functions,
    tfdata,
)
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, places_by_value
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    clip,
    intersect,
    join,
    total_ns,
    union,
)
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.tables import Int32, Int64

Float = NDArray[np.float64]

PYTHON_CALL_NS = 200_000
"""Processor time of calling an empty Python function from a pipeline, and of converting its result:
0.2 ms, measured with TensorFlow 2.21 on a 2-core x86 virtual machine."""
PYTHON_SHARE = 1 / 8
"""A guess: what Python functions compute in the rest of their time. They often wait for storage,
for a service or for Python's lock, and no event tells."""

ALL_CORES = 0.75
"""How far to believe that operators could use the cores that no thread of the step is seen on: the
frameworks compute a large operator on all cores by default, and record one thread."""
FEWEST_CORES = 2
"""Of any machine that trains."""
MOST_THREADS = 16
"""Operators of common sizes gain little from more threads than this."""
SLOWEST = 0.75
"""How far to believe that an operator takes as long as its slowest thread, whose core a worker
shares. PyTorch's threads get equal parts in advance (OpenMP's static schedule, oneDNN)."""
CERTAIN_PART = 0.75
"""The part of the loss that is certain: some of what input does stays after every change."""

# In the first, a thread waits until another one has run the function; in the second, it hands the
# result over, which takes a lock and wakes a thread.
_WAITS_FOR_THREAD = regex(r"^InstantiatedCapturedFunction::Run(?!Async)|^ExecutorDoneCallback$")


class CoreSharing(Struct, frozen=True):
    """Processor time of input during the step's work, as totals over the used steps."""

    cores: int
    input_ns: int
    """Thread time of input in the used window, without waiting."""
    python_ns: int
    """The part of it in Python functions, which may compute or wait for something else. One of
    them runs at a time."""
    shared: Intervals
    """When the step computes while input is prepared."""
    low_ns: int
    """What the step loses to threads of input that certainly find no idle core."""
    expected_ns: int
    high_ns: int
    """What it loses if its operators could use all cores."""


@memoized
def core_sharing(signals: Signals) -> CoreSharing | None:
    """What input takes from the step's cores; None with a device, or if it is unknown."""
    if not signals.device.is_host_only:
        return None
    workers = worker_batches(signals)
    if workers is not None:
        return _with_processes(signals, workers)
    cores = tfdata(signals).cores
    return None if cores is None else _with_threads(signals, cores)


def _with_processes(signals: Signals, workers: WorkerBatches) -> CoreSharing:
    """Each mark is a batch, and each batch was made while one was used."""
    work = signals.attribution.intervals[Cause.HOST_COMPUTE]
    work_ns = total_ns(work)
    input_ns = int(workers.cpu_ns.sum())
    window_ns = max(signals.attribution.window_ns, 1)
    busy = input_ns / window_ns  # workers, on average
    free = max(workers.cores - workers.threads, 0)
    without_core = max(busy - free, 0.0) / busy if busy else 0.0
    beside_ns = input_ns * work_ns / window_ns
    taken_ns = beside_ns * without_core
    even_ns = taken_ns / workers.cores
    # A thread that shares its core gets at least half of it.
    slowest_ns = max(min(taken_ns, work_ns / 2), even_ns)
    return CoreSharing(
        cores=workers.cores,
        input_ns=input_ns,
        python_ns=0,
        shared=work,
        low_ns=int(CERTAIN_PART * even_ns),
        expected_ns=int((1 - SLOWEST) * even_ns + SLOWEST * slowest_ns),
        high_ns=int(min(max(slowest_ns, beside_ns / workers.cores), work_ns)),
    )


class _Threads(Struct, frozen=True):
    """How many threads run in each stretch of the used window; columns of shape (stretches,)."""

    length_ns: Float
    inputs: Float
    """Threads of the pipelines that compute."""
    pythons: Float
    """Threads in Python functions; one of them runs at a time."""
    likely: Float
    """Threads of input, with the part of Python functions that likely computes."""
    steps: Float
    """Threads that run operators of the step."""
    most_steps: Float
    """The same if operators use all cores."""
    shared: Intervals
    """When the step computes while input is prepared."""


@memoized
def _threads(signals: Signals) -> _Threads:
    window = signals.attribution
    start, end = window.window_start_ns, window.window_end_ns
    computing, python = _input_threads(signals)
    steps = _step_threads(signals)
    edges = distinct(
        np.concatenate([[start, end], *(part.ravel() for part in (*computing, *python, *steps))])
    )
    edges = edges[(edges >= start) & (edges <= end)]
    at = edges[:-1]
    inputs, pythons, of_step = (_running(threads, at) for threads in (computing, python, steps))
    pythons = np.minimum(pythons, 1.0)  # the others wait for Python's lock
    most = min(tfdata(signals).cores or FEWEST_CORES, MOST_THREADS)
    shared = intersect(join(*computing, *python), join(*steps))
    return _Threads(
        length_ns=np.diff(edges).astype(np.float64),
        inputs=inputs,
        pythons=pythons,
        likely=inputs + pythons * _python_share(signals),
        steps=of_step,
        most_steps=np.where(of_step > 0, np.maximum(of_step, most), 0.0),
        shared=clip(union(shared[:, 0], shared[:, 1]), start, end),
    )


def _with_threads(signals: Signals, cores: int) -> CoreSharing:
    threads = _threads(signals)
    input_ns = float((threads.inputs * threads.length_ns).sum())
    python_ns = float((threads.pythons * threads.length_ns).sum())
    step_ns = float((threads.steps * threads.length_ns).sum())
    # Threads share cores, so together they compute no longer than the cores do.
    window_ns = signals.attribution.window_ns
    crowding = max((input_ns + python_ns + step_ns) / max(cores * window_ns, 1), 1.0)
    length_ns = np.where(threads.steps > 0, threads.length_ns, 0.0)

    def lost_ns(inputs: Float, steps: Float) -> float:
        """The cores' time that these threads of input take from those of the step."""
        taking = np.maximum(inputs - np.maximum(cores - steps, 0), 0)
        return float((np.minimum(taking, cores) * length_ns).sum()) / cores

    certain_ns = lost_ns(threads.inputs, threads.steps) / crowding
    likely_ns = lost_ns(threads.likely, threads.steps) / crowding
    possible_ns = lost_ns(threads.likely, threads.most_steps) / crowding
    most_inputs = threads.inputs + threads.pythons
    high_ns = min(lost_ns(most_inputs, threads.most_steps), total_ns(threads.shared))
    return CoreSharing(
        cores=cores,
        input_ns=int(input_ns + python_ns),
        python_ns=int(python_ns),
        shared=threads.shared,
        low_ns=int(min(CERTAIN_PART * certain_ns, high_ns)),
        expected_ns=int(min(_mean(likely_ns, possible_ns), high_ns)),
        high_ns=int(high_ns),
    )


class OverlapLimit(Struct, frozen=True):
    """The most that preparing more input at a time can save, as totals over the used window.

    Input and step need the same processor time as before, so at best all cores are busy all the
    time: what is saved is the time that cores idle now, divided by their number.
    """

    expected_ns: int
    high_ns: int
    """If operators use no more cores than the threads that they are seen on, and Python functions
    only wait."""


@memoized
def overlap_limit(signals: Signals) -> OverlapLimit | None:
    """What idle cores allow; None with a device.

    If the number of cores is unknown, two are expected, and more are possible: without a limit.
    """
    if not signals.device.is_host_only:
        return None
    known, threads = tfdata(signals).cores, _threads(signals)
    cores = known or FEWEST_CORES

    def idle_ns(inputs: Float, steps: Float) -> float:
        idle = np.maximum(cores - inputs - steps, 0.0)
        return float((idle * threads.length_ns).sum()) / cores

    likely_ns = idle_ns(threads.likely, threads.steps)
    possible_ns = idle_ns(threads.likely, threads.most_steps)
    most_ns = signals.attribution.window_ns
    if known is not None:
        most_ns = int(idle_ns(threads.inputs, threads.steps))
    return OverlapLimit(int(_mean(likely_ns, possible_ns)), most_ns)


def _mean(seen: float, possible: float) -> float:
    return (1 - ALL_CORES) * seen + ALL_CORES * possible


def _python_share(signals: Signals) -> float:
    """The likely part of Python functions in which they compute."""
    duration_ns = signals.trace.events.duration_ns[python_functions(signals)]
    if not len(duration_ns):
        return 0.0
    calling_ns = np.minimum(duration_ns, PYTHON_CALL_NS)
    computing_ns = calling_ns + PYTHON_SHARE * (duration_ns - calling_ns)
    return float(computing_ns.sum() / max(int(duration_ns.sum()), 1))


def _running(threads: list[Intervals], at_ns: Int64) -> Float:
    """How many threads run at each time."""
    starts = np.sort(np.concatenate([part[:, 0] for part in (EMPTY, *threads)]))
    ends = np.sort(np.concatenate([part[:, 1] for part in (EMPTY, *threads)]))
    begun = np.searchsorted(starts, at_ns, side="right")
    return (begun - np.searchsorted(ends, at_ns, side="right")).astype(np.float64)


def _input_threads(signals: Signals) -> tuple[list[Intervals], list[Intervals]]:
    """When each thread of the input pipelines computes, and when it runs Python functions."""
    trace = signals.trace
    events, table = trace.events, trace.iterators
    rows = distinct(np.concatenate((trace.rows(EventKind.INPUT_WORK), table.row[table.run != 0])))
    group = np.zeros(len(events), dtype=np.int8)
    group[_waiting(signals, rows)] = 1
    group[python_functions(signals)] = 2
    computing: list[Intervals] = []
    in_python: list[Intervals] = []
    for _, places in places_by_value(events.track[rows]):
        of_track = rows[places]
        computes, _, runs_python = innermost_time(trace, of_track, group[of_track], 3)
        computing.append(computes)
        in_python.append(runs_python)
    return computing, in_python


def _waiting(signals: Signals, rows: Int32) -> Int32:
    """Calls that wait for other threads, or for storage."""
    trace, pipelines = signals.trace, tfdata(signals)
    nodes = [
        pipelines.call_rows[node]
        for node, kind in enumerate(pipelines.kind)
        if kind in ASYNCHRONOUS or kind in READERS
    ]
    calls = (rows[named(trace, rows, _WAITS_FOR_THREAD)], file_reads(signals), *nodes)
    return np.concatenate(calls).astype(np.int32)


def _step_threads(signals: Signals) -> list[Intervals]:
    """When each thread runs operators of the step."""
    trace, work = signals.trace, signals.attribution.intervals[Cause.HOST_COMPUTE]
    events, rows = trace.events, trace.rows(EventKind.OPERATOR)
    return [
        intersect(work, _time(trace, rows[places]))
        for _, places in places_by_value(events.track[rows])
    ]


def _time(trace: Trace, rows: Int32) -> Intervals:
    return trace.events.spans(rows)
