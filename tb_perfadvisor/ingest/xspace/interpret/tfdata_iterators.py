"""Adds the attributes of tf.data iterators, and the runs of user functions.

The calls of an iterator have its number and its parent's. A user function that starts on one thread
runs on others; all its events have the number of the run.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xspace.decode.events import Events, Lines
from tb_perfadvisor.ingest.xspace.decode.planes import Plane
from tb_perfadvisor.trace import Assembler
from tb_perfadvisor.trace.intervals import contains, minus, union
from tb_perfadvisor.trace.tables import Int32, Int64

_CALL: Final = re.compile(r"Iterator::")
_START: Final = re.compile(r"InstantiatedCapturedFunction::")
_EXECUTOR: Final = "ExecutorState::Process"
_EXECUTION: Final = re.compile(rf"{_EXECUTOR}$|ExecutorDoneCallback$")
_BYTES_PER_MB: Final = 1_000_000  # tensorflow/core/framework/dataset.cc: BuildTraceMeName
_MAX_INT32: Final = 2**31 - 1


class Iterators:
    """The iterators of a host plane."""

    def __init__(self, plane: Plane) -> None:
        """Find the events of iterators.

        Args:
            plane: A host plane.
        """
        self._plane = plane
        names = plane.metadata.names if plane.has_iterators else []
        self._is_call, self._is_start, self._is_execution = (
            np.array([bool(pattern.match(name)) for name in names], dtype=bool)
            for pattern in (_CALL, _START, _EXECUTION)
        )
        self._is_executor = np.array([name == _EXECUTOR for name in names], dtype=bool)
        self._runs = np.empty(0, dtype=np.int64)
        if self._is_start.any():
            self._runs = np.unique(
                np.concatenate(
                    [
                        batch.numbers("id", 0)[self._is_start[batch.row]]
                        for batch in plane.events.in_batches(plane.lines)
                    ]
                )
            )

    def in_functions(self, threads: Lines) -> NDArray[np.bool_]:
        """Which events begin while their thread executes a user function; shape (events,).

        An executor of the step may run inside, because a step that waits for an element resumes on
        the thread that produced it. What the executor runs is not part of the function.
        """
        is_inside = np.zeros(len(threads), dtype=bool)
        if not self._runs.size:
            return is_inside
        executed = self._is_executor[threads.row]
        id_ = threads.numbers("id", 0)
        runs = executed & np.isin(id_, self._runs) & (id_ != 0)
        for line, place in threads.with_any(runs):
            start, end, is_run = line.start_ns, line.start_ns + line.duration_ns, runs[place]
            functions = union(start[is_run], end[is_run])
            is_other = executed[place] & ~is_run & contains(functions, start)
            own = minus(functions, union(start[is_other], end[is_other]))
            is_inside[place] = contains(own, start)
        return is_inside

    def add(self, assembler: Assembler, threads: Events, kept: Int64, events: Int32) -> None:
        """Add the attributes of the events of threads.

        Args:
            assembler: Receives the attributes.
            threads: All events of the threads.
            kept: The events of the threads that were added; shape (kept,).
            events: Their provisional ids; shape (kept,).
        """
        if not self._is_call.any():
            return
        row = threads.row[kept]
        id_ = threads.numbers("id", 0)[kept]
        is_call = self._is_call[row]
        is_run = self._is_start[row] | self._is_execution[row]
        is_run &= np.isin(id_, self._runs) & (id_ != 0)
        selected = np.flatnonzero(is_call | is_run)
        if not selected.size:
            return
        is_call, id_ = is_call[selected], id_[selected]
        place = kept[selected]

        def whole(stat: str, least: int = 0) -> Int64:
            values: Int64 = threads.numbers(stat)[place]
            return np.where((values >= least) & (values <= _MAX_INT32) & is_call, values, -1)

        def size(stat: str) -> Int64:
            megabytes = whole(stat)
            return np.where(megabytes >= 0, megabytes * _BYTES_PER_MB, -1)

        assembler.add_iterators(
            events[selected],
            iterator=np.where(is_call, id_, 0),
            parent=np.where(is_call, threads.numbers("parent_id", 0)[place], 0),
            run=np.where(is_call, 0, id_),
            dataset=_texts(assembler, threads, "name", place, is_call),
            shapes=_texts(assembler, threads, "shapes", place, is_call),
            types=_texts(assembler, threads, "types", place, is_call),
            parallelism=whole("parallelism"),
            is_autotuned=_flag(threads, "autotune")[place],
            batch_size=whole("batch_size"),
            # Prefetch has a limit, shuffle a size.
            buffer_size=np.maximum(whole("buffer_limit"), whole("buffer_size")),
            buffered=whole("buffered_elements"),
            buffered_bytes=size("buffered_bytes_MB"),
            cores=whole("cpu_budget", least=1),
            threads=whole("threadpool_size"),
            memory_bytes=size("ram_budget_megabytes"),
        )


def _texts(
    assembler: Assembler, threads: Events, stat: str, place: Int64, is_call: NDArray[np.bool_]
) -> NDArray[Any]:
    """The string index of a text stat for the given events; -1 if missing."""
    index, texts = threads.texts(stat)
    known = np.append(assembler.intern_all(texts), np.int32(-1))
    return np.where(is_call, known[index[place]], -1)


def _flag(threads: Events, stat: str) -> Int64:
    """A text stat that is `true` (1) or `false` (0); -1 for others."""
    index, texts = threads.texts(stat)
    known = np.array([*({"false": 0, "true": 1}.get(text, -1) for text in texts), -1])
    flags: Int64 = known[index]
    return flags
