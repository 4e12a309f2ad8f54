"""Links runs of programs on a TPU to the host calls that launched them, and compares the clocks.

A launch (`DoEnqueueProgram`) and its run have a context in common, or else the number of the run
(`run_id`), which each device counts for itself. Either side may carry a context that the other
lacks, so the key that both have links them. If no launch has a number, the calls of jitted
functions are linked instead: the n-th call of `f` launched the n-th run of `jit_f` by `run_id`.

A launch precedes its run, and a run precedes the event that reports its end and the return of a
call that waits for it. Clocks that contradict this differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xspace.decode.events import Events, Line, Lines
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value
from tb_perfadvisor.trace.intervals import last_before
from tb_perfadvisor.trace.tables import Int64

# `_pt` and `_ct` are the types of the contexts `_p` and `_c` (tsl/profiler/lib/context_types.h).
TPU_LAUNCH: Final = 12
# Contexts are hashes below 2^62. The numbers made here lie above.
_BY_RUN: Final = 1 << 62
_BY_CALL: Final = _BY_RUN + (1 << 61)
_DEVICE_BITS: Final = 40

_CALL: Final = regex(r"PjitFunction\((?P<function>.+)\)$")
_MODULE: Final = regex(r"jit_(?P<function>.+?)(?:(?<!_)_*)?\(\d+\)$")
_COMPLETE: Final = regex(r"CompleteCallbacks$")
_NOT_IN_NAMES: Final = regex(r"[^\w.-]")

_LEAST_SHIFT_NS: Final = 10_000
"""The clocks of TPUs and hosts are synchronized to within microseconds."""
_PROMPT_SHARE: Final = 0.1
"""A wait that returns within this share of a run's length after some run waited for that run."""
_NONE: Final = np.empty(0, dtype=np.int64)


class HostRuns:
    """Launches, completions and waits of a host, collected line by line."""

    def __init__(self) -> None:
        self._launches: list[tuple[Int64, Int64]] = []
        self._completions: list[tuple[Int64, Int64]] = []
        self._returns: list[Int64] = []
        self._calls: dict[str, Int64] = {}
        self._functions: dict[str, int] = {}

    def add(self, threads: Lines, kind: NDArray[np.uint8], correlation: Int64) -> Int64:
        """Collect the events of host threads.

        `kind` has the kind of each event, and `correlation` what links it to device events so far;
        -1 for nothing. Returns `correlation` with the numbers of launches and of calls of jitted
        functions.
        """
        run = _run_numbers(threads, threads.numbers("device_ordinal", 0))
        is_launch = (kind == EventKind.LAUNCH) & (correlation < 0)
        linked = np.where(is_launch, _contexts(threads, "_pt", "_p", run), correlation)
        started = (kind == EventKind.LAUNCH) & (linked >= 0)
        if started.any():
            self._launches.append((linked[started], threads.start_ns[started]))
        ended = threads.named(_COMPLETE)
        if ended.any():
            known = _contexts(threads, "_ct", "_c", run)
            self._completions.append((known[ended], threads.start_ns[ended]))
        is_call = threads.named(_CALL)
        for line, place in threads.with_any(is_call):
            self._add_calls(line, np.flatnonzero(is_call[place]), linked[place])
            waits = kind[place] == EventKind.SYNCHRONIZE
            self._returns.append((line.start_ns + line.duration_ns)[waits])
        return linked

    def _add_calls(self, line: Line, calls: Int64, linked: Int64) -> None:
        """Collect the calls of jitted functions, and number those that are linked to nothing."""
        start, end = line.start_ns[calls], (line.start_ns + line.duration_ns)[calls]
        order = np.lexsort((-end, start))
        calls, start, end = calls[order], start[order], end[order]
        is_outermost = np.append(True, start[1:] >= np.maximum.accumulate(end)[:-1])
        outermost = calls[is_outermost]
        for row, places in places_by_value(line.row[outermost]):
            match = _CALL.match(line.names[row])
            function = _NOT_IN_NAMES.sub("_", str(match["function"]) if match else "").strip("_")
            own = outermost[places]
            number = self._functions.setdefault(function, len(self._functions))
            earlier = self._calls.get(function, _NONE)
            of_call = _BY_CALL + (number << _DEVICE_BITS) + len(earlier) + np.arange(len(own))
            linked[own] = np.where(linked[own] < 0, of_call, linked[own])
            self._calls[function] = np.concatenate([earlier, line.start_ns[own]])

    def launch_numbers(self, modules: Line, device: int) -> Int64:
        """What links the runs of a device to their launches; -1 for nothing.

        `modules` is the device's line of runs.
        """
        nothing = np.full(len(modules), -1, dtype=np.int64)
        launched = np.concatenate([_NONE, *(number for number, _ in self._launches)])
        if not launched.size:
            return self._numbers_of_calls(modules)
        context = _contexts(modules, "_ct", "_c", nothing)
        run = _run_numbers(modules, np.full(len(modules), device))
        by_run = np.where(is_in(run, launched), run, nothing)
        return np.where(is_in(context, launched), context, by_run)

    def _numbers_of_calls(self, modules: Line) -> Int64:
        """The numbers of calls, for functions whose n-th run follows their n-th call."""
        numbers = np.full(len(modules), -1, dtype=np.int64)
        run = modules.numbers("run_id")
        by_function: dict[str, list[int]] = {}
        for row in distinct(modules.row).tolist():
            match = _MODULE.match(modules.names[row])
            if match:
                by_function.setdefault(match["function"].strip("_"), []).append(row)
        for function, rows in by_function.items():
            runs = np.flatnonzero(is_in(modules.row, rows))
            runs = runs[np.argsort(run[runs], kind="stable")]
            called_ns = self._calls.get(function, _NONE)
            if len(runs) != len(called_ns) or (run[runs] < 0).any():
                continue
            # A recording that began mid-work has a run too many at first, and a call at last.
            if (called_ns <= modules.start_ns[runs]).all():
                first = _BY_CALL + (self._functions[function] << _DEVICE_BITS)
                numbers[runs] = first + np.arange(len(runs))
        return numbers

    def clock_shift_ns(self, modules: Line, numbers: Int64) -> int:
        """By how much the events of a device must be moved to agree with the host.

        `modules` is the device's line of runs, and `numbers` is what `launch_numbers` returns for
        it.
        """
        start, end = modules.start_ns, modules.start_ns + modules.duration_ns
        launched_ns = _first_times(numbers, self._launches)
        is_launched = launched_ns >= 0
        if not is_launched.any():
            return 0
        least = int((launched_ns - start)[is_launched].max())
        completed_ns = _first_times(numbers, self._completions)
        is_completed = completed_ns >= 0
        if is_completed.any():
            most = int((completed_ns - end)[is_completed].min())
        else:
            most = self._before_waits(launched_ns[is_launched], end[is_launched])
        # A launch always precedes its run. What a wait waits for is less certain.
        is_possible = least <= most + _LEAST_SHIFT_NS
        moved = max(most, least) if is_possible and most < 0 else 0
        shift = least if least > 0 else moved
        return shift if abs(shift) >= _LEAST_SHIFT_NS else 0

    def _before_waits(self, launched_ns: Int64, end_ns: Int64) -> int:
        """By how much runs may move until one ends after the return of a wait for it.

        The first wait that returns after a launch and before the next one waits for that run,
        unless waits return right after other runs: then the host waits for earlier ones.
        """
        returns = np.sort(np.concatenate([_NONE, *self._returns]))
        order = np.argsort(launched_ns, kind="stable")
        slot = last_before(launched_ns[order], returns)
        returns, slot = returns[slot >= 0], slot[slot >= 0]
        if not returns.size:
            return 0
        ends = np.sort(end_ns)
        earlier = last_before(ends, returns)
        follows = earlier >= 0
        delay = returns[follows] - ends[earlier[follows]]
        usual = float(np.median(np.diff(ends))) if len(ends) > 1 else 0.0
        is_prompt = 2 * int((delay <= _PROMPT_SHARE * usual).sum()) > len(returns)
        if is_prompt:
            return 0
        return int((returns - end_ns[order][slot]).min())


def _contexts(events: Events, type_: str, context: str, otherwise: Int64) -> Int64:
    """The contexts of launches and runs as numbers that are not negative."""
    is_known = events.numbers(type_) == TPU_LAUNCH
    if not is_known.any():
        return otherwise
    return np.where(is_known, events.numbers(context) & np.int64(_BY_RUN - 1), otherwise)


def _run_numbers(events: Events, device: Int64) -> Int64:
    """Numbers of runs by device and `run_id`; -1 for events without one."""
    run = events.numbers("run_id")
    is_known = (run >= 0) & (run < 1 << _DEVICE_BITS) & (device >= 0) & (device < 1 << 20)
    return np.where(is_known, _BY_RUN + (device << _DEVICE_BITS) + run, -1)


def _first_times(numbers: Int64, known: Sequence[tuple[Int64, Int64]]) -> Int64:
    """For each number, the first known time of it; -1 for none."""
    of = np.concatenate([_NONE, *(number for number, _ in known)])
    at_ns = np.concatenate([_NONE, *(time for _, time in known)])
    order = np.lexsort((at_ns, of))
    of, at_ns = of[order], at_ns[order]
    slot = np.searchsorted(of, numbers)
    found = (slot < len(of)) & (numbers >= 0)
    slot = np.minimum(slot, max(len(of) - 1, 0))
    if not len(of):
        return np.full(len(numbers), -1, dtype=np.int64)
    return np.where(found & (of[slot] == numbers), at_ns[slot], -1)
