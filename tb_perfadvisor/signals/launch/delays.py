"""From the launch of work to its start.

For a call of a compiled program, XLA's runtime copies arguments that are arrays of the host, and
then dispatches the program. Its events have no code of the user inside, except for Python that
traces a function, which counts as compiling.

An idle gap is grouped with those before the same work by the same launcher, however long it is:
what the host does before one kernel is one cause, whether a gap lasts 1.9 or 2.1 ms.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.idle_gaps import Idle
from tb_perfadvisor.signals.device.device_work import operators_of, work_rows
from tb_perfadvisor.signals.input.tfdata import tfdata
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import (
    distinct,
    group_rows,
    is_in,
    places_by_value,
    unique_inverse,
)
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    contains,
    intersect,
    last_before,
    minus,
    overlap_ns,
    single,
    union,
)
from tb_perfadvisor.trace.names import named, rows_named
from tb_perfadvisor.trace.tables import Float64, Int32, Int64

LONGEST_LAUNCH_GAP_NS = 2_000_000
"""An eager operator costs the host 5 to 20 microseconds, and the longest chains of views and checks
between two launches a few hundred. Two milliseconds without a launch have another cause."""

_LEAST_SHARE = 0.1
"""Of a core: the least that a program is taken to have, however busy others are."""


def short_and_long_gaps(idle: Idle, longest_ns: float) -> tuple[Intervals, Intervals]:
    """Gaps without queued work: those up to a length, and the longer ones."""
    length = idle.end_ns - idle.start_ns
    short = ~idle.is_queued & (length <= longest_ns)
    long = ~idle.is_queued & (length > longest_ns)
    return (
        union(idle.start_ns[short], idle.end_ns[short]),
        union(idle.start_ns[long], idle.end_ns[long]),
    )


def stretched_ns(usual_ns: float, trace: Trace) -> int:
    """How long host code takes that usually takes so long, if others use the same cores."""
    load = trace.facts.load
    return int(usual_ns / max(1 - (load.others if load is not None else 0.0), _LEAST_SHARE))


def taken_by_others_ns(span_ns: int, trace: Trace) -> int:
    """How long, of some time, other programs had the program's cores, as far as it was measured."""
    load = trace.facts.load
    return int(span_ns * load.others) if load is not None else 0


_ACCIDENTAL = 5
"""How many times as long as usual. A cold cache makes code a few times slower."""
_FEWEST_STEPS = 5
"""The median of fewer gaps says little about what is usual."""
_RARELY = 0.2
"""What is long in more steps is code that runs in every few of them."""


@memoized
def accidental_gaps(signals: Signals) -> Intervals:
    """On the CPU, gaps that are far longer than those at the same place of nearly all other steps.

    The program's own code takes about as long each time it runs. Other programs on the same cores
    stop it anywhere, seldom twice at the same place. A place is the gap before the n-th operator of
    a name in the step, after the operator that precedes it.
    """
    events, gaps = signals.trace.events, signals.attribution.idle
    rows = signals.steps.own(signals.trace.rows(EventKind.OPERATOR))
    if not signals.device.is_host_only or not len(rows) or not len(gaps.start_ns):
        return EMPTY
    name, step = events.name[rows].astype(np.int64), signals.steps.owner[rows]
    number = np.empty(len(rows), dtype=np.int64)
    for _, places in places_by_value(name):
        first = np.searchsorted(step[places], step[places], side="left")
        number[places] = np.arange(len(places)) - first
    by_end = np.argsort(events.end_ns[rows], kind="stable")
    before = np.searchsorted(events.end_ns[rows[by_end]], gaps.start_ns, side="right") - 1
    after = np.searchsorted(events.start_ns[rows], gaps.end_ns, side="left")
    is_inner = (before >= 0) & (after < len(rows))
    start_ns, end_ns = gaps.start_ns[is_inner], gaps.end_ns[is_inner]
    before, after, length_ns = by_end[before[is_inner]], after[is_inner], end_ns - start_ns
    _, place = np.unique(
        np.stack((name[before], name[after], number[after])), axis=1, return_inverse=True
    )
    place = place.ravel()
    is_long = length_ns > LONGEST_LAUNCH_GAP_NS
    compared = np.flatnonzero(is_in(place, distinct(place[is_long])))
    for _, places in places_by_value(place[compared]):
        at = compared[places]
        is_long[at] &= length_ns[at] > _ACCIDENTAL * np.median(length_ns[at])
        is_long[at] &= len(at) >= _FEWEST_STEPS
        is_long[at] &= is_long[at].sum() <= max(_RARELY * len(at), 1)
    return union(start_ns[is_long], end_ns[is_long])


class LaunchDelays(Struct, frozen=True):
    """Device events of the used window with known launches; columns of shape (events,)."""

    row: Int32
    idle_ns: Int64
    """Idle time before the event until the host launched it; 0 if the device had work."""
    input_threads: Int64
    """Number of threads that ran functions of the input pipeline at the launch."""
    idle: Intervals
    """All of that idle time."""

    def before(self, signals: Signals, ahead_ns: Int64) -> Intervals:
        """Idle time within `ahead_ns` before each event; shape (events,)."""
        start = signals.trace.events.start_ns[self.row]
        return intersect(self.idle, union(start - ahead_ns, start))


@memoized
def launch_delays(signals: Signals) -> LaunchDelays:
    """The delays, without events after a stall that has another cause."""
    trace, window = signals.trace, signals.attribution
    events, gaps = trace.events, window.idle
    idle = minus(signals.host_idle, signals.synchronizations.induced)
    own_ns = np.zeros(len(events), dtype=np.int64)
    is_stalled = np.zeros(len(events), dtype=bool)
    ended = (gaps.next_row >= 0) & ~gaps.is_queued
    start, end, row = gaps.start_ns[ended], gaps.end_ns[ended], gaps.next_row[ended]
    is_stalled[row] = end - start > LONGEST_LAUNCH_GAP_NS
    own_ns[row] = overlap_ns(idle, start, end)

    rows = signals.device.rows
    launch = events.launched_by[rows]
    is_used = (signals.steps.owner[rows] >= 0) & (launch >= 0) & ~is_stalled[rows]
    return LaunchDelays(
        row=rows[is_used],
        idle_ns=own_ns[rows[is_used]],
        input_threads=tfdata(signals).running(events.start_ns[launch[is_used]]),
        idle=idle,
    )


class KernelDelays(Struct, frozen=True):
    """Kernels launched with busy and with free cores; columns have shape (names,)."""

    name: Int32
    taken: Int64
    """Launches with all cores busy."""
    free: Int64
    taken_ns: Float64
    """Idle time before launches with all cores busy."""
    usual_ns: Float64
    """What that time would be with free cores."""
    excess_ns: Int64
    """How much longer than usual each event is delayed, shape (events,)."""


def compare_by_kernel(
    signals: Signals, delays: LaunchDelays, is_taken: NDArray[np.bool_]
) -> KernelDelays:
    """The delays of each kernel with all cores busy, against those at other times.

    `is_taken` tells whether all cores were busy at each launch, shape (events,).
    """
    names, inverse = unique_inverse(signals.trace.events.name[delays.row])
    size = len(names)

    def count_of(chosen: NDArray[np.bool_]) -> Int64:
        return np.bincount(inverse[chosen], minlength=size).astype(np.int64)

    def idle_of(chosen: NDArray[np.bool_]) -> Float64:
        return np.bincount(inverse[chosen], delays.idle_ns[chosen], size).astype(np.float64)

    taken, free = count_of(is_taken), count_of(~is_taken)
    mean_ns = idle_of(~is_taken) / np.maximum(free, 1)
    is_comparable = (taken > 0) & (free > 0)
    excess = np.where(is_taken & is_comparable[inverse], delays.idle_ns - mean_ns[inverse], 0.0)
    return KernelDelays(
        name=names[is_comparable],
        taken=taken[is_comparable],
        free=free[is_comparable],
        taken_ns=idle_of(is_taken)[is_comparable],
        usual_ns=(mean_ns * taken)[is_comparable],
        excess_ns=np.rint(np.maximum(excess, 0)).astype(np.int64),
    )


class LaunchQueue(Struct, frozen=True):
    """State of the device at each launch whose work begins in the used window; shape (n,).

    A graph is one launch, however many kernels it has.
    """

    row: Int32
    """The first device event of the launch."""
    depth: Int64
    """Number of launches made earlier whose work had not ended when this one was made."""
    lead_ns: Int64
    """From the start of the launch call to the start of the event."""

    @property
    def empty_share(self) -> float | None:
        """Share of the launches that find the queue empty; None without launches."""
        return float((self.depth == 0).mean()) if len(self.depth) else None

    @property
    def median_depth(self) -> float | None:
        """Median of `depth`; None without launches."""
        return float(np.median(self.depth)) if len(self.depth) else None

    @property
    def median_lead_ns(self) -> float | None:
        """Median of `lead_ns`; None without launches."""
        return float(np.median(self.lead_ns)) if len(self.lead_ns) else None


@memoized
def launch_queue(signals: Signals) -> LaunchQueue:
    """Depth of the queue at each launch, from launch calls and ends of events."""
    events = signals.trace.events
    rows = signals.device.rows
    rows = rows[events.launched_by[rows] >= 0]
    # Rows are in order of start.
    launch, first = np.unique(events.launched_by[rows], return_index=True)
    called, rows = events.start_ns[launch], rows[first]
    start = events.start_ns[rows]
    inside = signals.steps.owner[rows] >= 0
    return LaunchQueue(
        row=rows[inside],
        depth=np.maximum(launches_pending(signals, called[inside]), 0),
        lead_ns=np.maximum(start - called, 0)[inside],
    )


def launches_pending(signals: Signals, at_ns: Int64) -> Int64:
    """Number of launches, each a kernel, a copy or a graph, that the device had not finished."""
    events, rows = signals.trace.events, signals.device.rows
    rows = rows[events.launched_by[rows] >= 0]
    launch, of_row = unique_inverse(events.launched_by[rows])
    done_ns = np.zeros(len(launch), dtype=np.int64)
    np.maximum.at(done_ns, of_row, events.end_ns[rows])
    begun = np.searchsorted(np.sort(events.start_ns[launch], kind="stable"), at_ns, side="left")
    return begun - np.searchsorted(np.sort(done_ns, kind="stable"), at_ns, side="right")


# xla/pjrt: common_pjrt_client.cc, pjrt_stream_executor_client.cc, cpu/cpu_client.cc.
_KINDS: Final = (EventKind.ANNOTATION, EventKind.LAUNCH, EventKind.COMPILE)
_DISPATCH: Final = regex(r"Executable::Execute\w*$")
_CALL: Final = regex(r"PjitFunction\(")
_PUT: Final = regex(r"DevicePut$|BufferFromHostBuffer(?:(?!BufferFromHostBuffer)\w)*$")
_TRANSFER: Final = regex(r"H2D Dispatch$|TransferToDevice(?:(?!TransferToDevice)\w)*$")

_COPIES: Final = regex(r"^copy(?:\.\d+)?$")
"""XLA copies an argument on the CPU to an array that it may reuse."""


class ArgumentTransfers(Struct, frozen=True):
    """Copies of a call's arguments from the host's memory, in the used window."""

    rows: Int32
    """Events of the copies."""
    exposed: Intervals
    """When an argument is copied and the device idles or, on the CPU, no operation but copies
    runs."""


@memoized
def dispatching(signals: Signals) -> Intervals:
    """Idle time inside of XLA's dispatch on the step's thread."""
    rows, events = _on_step_thread(signals, _DISPATCH), signals.trace.events
    return intersect(signals.host_idle, events.spans(rows))


@memoized
def argument_transfers(signals: Signals) -> ArgumentTransfers:
    """The copies of arguments that are arrays of the host; none outside of calls."""
    events = signals.trace.events
    calls, puts = _on_step_thread(signals, _CALL), _on_step_thread(signals, _PUT)
    if not len(calls) or not len(puts):
        return ArgumentTransfers(np.empty(0, dtype=np.int32), EMPTY)
    spans = events.spans(calls)
    is_implicit = contains(spans, events.start_ns[puts])
    # Other threads copy what the last one before them asked for.
    transfers = rows_named(signals.trace, _TRANSFER, *_KINDS)
    asked = last_before(events.start_ns[puts], events.start_ns[transfers])
    transfers = transfers[(asked >= 0) & is_implicit[np.maximum(asked, 0)]]
    rows = signals.steps.own(np.sort(np.concatenate([puts[is_implicit], transfers])))
    copying = events.spans(rows)
    if signals.device.is_host_only:
        operators = signals.trace.rows(EventKind.OPERATOR)
        computing = operators[~named(signals.trace, operators, _COPIES)]
        waited_for = minus(copying, events.spans(computing))
        window = signals.attribution
        steps = single(window.window_start_ns, window.window_end_ns)
        return ArgumentTransfers(rows, intersect(waited_for, steps))
    return ArgumentTransfers(rows, intersect(signals.host_idle, copying))


def _on_step_thread(signals: Signals, pattern: re.Pattern[str]) -> Int32:
    rows = rows_named(signals.trace, pattern, *_KINDS)
    found: Int32 = rows[signals.trace.events.track[rows] == signals.step_track]
    return found


_EXCESS = 10
"""How many times its share of the launches a launcher's share of the idle time is. Kernels before
which the host checks or allocates more than usual reach 5 (cuDNN's convolutions 9)."""
_FEWEST_PER_STEP = 3
"""What happens once or twice in a step is no launch that is slow, but other code of the step."""
_LEAST_SLOW_SHARE = 0.05
"""Of the steps. What is less stays a part of launching in general."""
_TYPICAL = 0.5
"""The median gap is at least this part of the mean: a few long gaps among short ones differ in
something else than the kernel."""
_NUMBERED = regex(r"_\d+$")
"""Inductor numbers its calls of a Triton kernel: `linear_relu_square_kernel_1`."""


class SlowLaunch(Struct, frozen=True):
    """The launches of one kernel by one operator, and the idle time before them."""

    event: str
    """The kernel or other device work."""
    operator: str
    """The innermost operator around the launch; empty if unknown."""
    launch_row: Int32
    """The calls that launched it after idle time; shape (gaps,)."""
    gap_ns: Int64
    """The idle time before each of them; shape (gaps,)."""
    launches: int
    """All launches of this work in the used window, those without idle time included."""
    excess: float
    """Its share of the idle time, divided by its share of the launches."""
    idle: Intervals
    idle_ns: int


def find_slow_launches(signals: Signals, idle: Intervals) -> tuple[SlowLaunch, ...]:
    """Work before which the host takes far longer than before other work, the costliest first.

    `idle` is the idle time to explain, a part of `Signals.host_idle`.
    """
    trace, gaps = signals.trace, signals.attribution.idle
    rows = work_rows(signals)
    # Before a copy, the host may wait for what it copies, such as a batch.
    is_kernel = trace.events.kind[rows] == EventKind.KERNEL
    rows = rows[is_kernel & (trace.events.launched_by[rows] >= 0)]
    if not len(rows) or not len(idle):
        return ()
    name, operator = _launchers(signals, rows)
    key, group = unique_inverse(name.astype(np.int64) * (len(trace.strings) + 1) + operator + 1)
    group_of = np.full(len(trace.events) + 1, -1, dtype=np.int64)
    group_of[rows] = group
    launched = np.bincount(group, minlength=len(key))
    idle_ns = overlap_ns(idle, gaps.start_ns, gaps.end_ns)
    of_gap = np.where(idle_ns > 0, group_of[gaps.next_row], -1)
    total_ns = max(int(idle_ns.sum()), 1)
    found = []
    for number, members in places_by_value(of_gap):
        if number < 0:
            continue
        sum_ns = int(idle_ns[members].sum())
        excess = sum_ns / total_ns * len(rows) / int(launched[number])
        if sum_ns < _LEAST_SLOW_SHARE * signals.attribution.window_ns:
            continue
        if excess < _EXCESS or len(members) < _FEWEST_PER_STEP * signals.steps.count:
            continue
        if np.median(idle_ns[members]) < _TYPICAL * idle_ns[members].mean():
            continue
        first = int(np.flatnonzero(group == number)[0])
        found.append(
            SlowLaunch(
                event=trace.text(int(name[first])),
                operator=trace.text(int(operator[first])),
                launch_row=gaps.launch_row[members],
                gap_ns=idle_ns[members],
                launches=int(launched[number]),
                excess=excess,
                idle=intersect(idle, _spans(gaps, members)),
                idle_ns=sum_ns,
            )
        )
    return tuple(sorted(found, key=lambda launch: -launch.idle_ns))


def _spans(gaps: Idle, members: NDArray[np.int64]) -> Intervals:
    return union(gaps.start_ns[members], gaps.end_ns[members])


def _launchers(signals: Signals, rows: Int32) -> tuple[Int32, Int32]:
    """The names of device events and of the operators that launch them; -1 if unknown.

    The operators that Inductor makes of a Triton kernel of the program are one.
    """
    trace = signals.trace
    names, operators = trace.events.name[rows], operators_of(signals, rows)
    operator = np.where(operators >= 0, trace.events.name[operators], -1)
    first, _ = group_rows(names, operator)
    for event, around in zip(names[first].tolist(), operator[first].tolist(), strict=True):
        if around < 0 or around == event:
            continue
        if _NUMBERED.sub("", trace.strings[around]) == trace.strings[event]:
            operator[(names == event) & (operator == around)] = event
    return names.astype(np.int32), operator.astype(np.int32)
