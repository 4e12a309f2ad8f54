"""What each waiting call waits for, and what the call itself costs.

Files rarely record which stream a call waits for. A call that had to wait returned right after the
work that it waited for. A call that did not have to wait is assumed to wait for the stream that its
thread used last.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import is_in, row_mask
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.whatif.program import NEVER, Program

ROUNDING_NS = 2_000
"""Clocks of host and device are matched to about a microsecond."""

MOST_LAUNCHES = 10
"""A call with nothing to wait for takes about as long as a launch. A call that takes this many
times as long waits for something."""

_EVERY_STREAM = re.compile(r"^(cuda|hip)DeviceSynchronize|^(cu|hip)CtxSynchronize")


class WaitEdges(Struct, frozen=True):
    """Waiting calls, and the work that each one waits for."""

    row: Int32
    """Rows of the calls; shape (waits,)."""
    returns_ns: Int64
    cost_ns: Int64
    """Duration of the call when there is nothing to wait for."""
    wait: Int32
    """Position in `row`; shape (edges,)."""
    work: Int32
    """Position in `Program.work`; -1 for work before the window."""
    stream: Int32
    delay_ns: Int64
    unexplained_ns: int
    """How long calls took beyond their usual cost, although no work explains it."""


def wait_edges(trace: Trace, program: Program) -> WaitEdges:
    """Find the edges into the waits of the window."""
    events, rows = trace.events, program.waits
    start, end = events.start_ns[rows], np.minimum(events.end_ns[rows], program.end_ns)
    wait, work, stream = _waited_for(trace, program, start, end)
    finished = np.where(work >= 0, events.end_ns[program.work[work]], program.tail_ns[stream])
    returns = end.copy()
    np.maximum.at(returns, wait, finished)
    length = returns - start
    # Of several streams, the record shows the one that finished last.
    latest = np.full(len(rows), NEVER, dtype=np.int64)
    np.maximum.at(latest, wait, finished)
    is_last = finished == latest[wait]
    held = is_last & (finished > start[wait])
    overhead = returns[wait] - finished
    # Long waits show what a call does after the wait; the others show what a call costs.
    clear = held & (finished - start[wait] > overhead)
    after = int(np.median(overhead[clear])) if clear.any() else 0
    was_held = np.zeros(len(rows), dtype=np.bool_)
    was_held[wait[held]] = True
    is_launch = row_mask(len(events), program.launch)
    is_copy = is_launch[rows]
    is_launch[rows] = False
    calls = np.flatnonzero(is_launch)
    launching = _median(events.duration_ns[calls], after)
    synchronizing = _median(length[~was_held & ~is_copy], after)
    cost = np.where(is_copy, launching, min(synchronizing, MOST_LAUNCHES * launching))
    # The return shows what the call waited for, unless its own cost explains its length better.
    binding = is_last & (np.abs(overhead - after) <= np.abs(length - cost)[wait])
    is_bound = np.zeros(len(rows), dtype=np.bool_)
    is_bound[wait[binding]] = True
    unexplained = length - cost
    np.minimum.at(unexplained, wait[is_last], (overhead - after)[is_last])
    return WaitEdges(
        row=rows,
        returns_ns=returns,
        cost_ns=np.where(is_bound, np.minimum(cost, length), length),
        wait=wait,
        work=work,
        stream=stream,
        delay_ns=np.where(binding, overhead, np.minimum(after, overhead)),
        unexplained_ns=int(np.maximum(unexplained, 0).sum()),
    )


def _median(values: Int64, default: int) -> int:
    return int(np.median(values)) if len(values) else default


def _waited_for(
    trace: Trace, program: Program, start: Int64, end: Int64
) -> tuple[Int32, Int32, Int32]:
    """Positions of each wait, of the work that it waits for, and the stream of that work."""
    events, rows, stream = trace.events, program.waits, program.stream
    finish = events.end_ns[program.work]
    count = len(program.tail_ns)
    # Per stream: the last work that was queued before each wait, and when it ended.
    last = np.full((count, len(rows)), -1, dtype=np.int32)
    for number in range(count):
        of_stream = np.flatnonzero(stream == number)
        launched = np.maximum.accumulate(events.start_ns[program.launch[of_stream]])
        slot = np.searchsorted(launched, start, side="left") - 1
        last[number] = np.where(slot >= 0, of_stream[np.maximum(slot, 0)], -1)
    ended = np.where(last >= 0, finish[last], program.tail_ns[:, None])
    # If a stream's work continued after the return, the call did not wait for that stream.
    fits = ended <= end + ROUNDING_NS
    names = [trace.name(row) for row in rows.tolist()]
    every = np.array([bool(_EVERY_STREAM.match(name)) for name in names], dtype=np.bool_)
    chosen = fits & every
    choice = np.where(fits, ended, NEVER - 1).argmax(axis=0)
    held = ended[choice, np.arange(len(rows))] > start
    choice = np.where(held, choice, _last_used(trace, program, start))
    single = np.flatnonzero(~every)
    chosen[choice[single], single] = fits[choice[single], single]
    _use_recorded_streams(trace, program, chosen, fits)
    copy_work = _work_of_blocking_copies(program, end, finish)
    copies = np.flatnonzero(copy_work >= 0)
    chosen[:, copies] = False
    streams, wait = np.nonzero(chosen)
    return (
        np.concatenate((wait, copies)).astype(np.int32),
        np.concatenate((last[streams, wait], copy_work[copies])).astype(np.int32),
        np.concatenate((streams, stream[copy_work[copies]])).astype(np.int32),
    )


def _last_used(trace: Trace, program: Program, start: Int64) -> Int32:
    """The stream on which the waiting thread last launched work; the busiest stream before that."""
    events = trace.events
    used = np.full(len(start), np.bincount(program.stream).argmax(), dtype=np.int32)
    line = program.line_of[events.track[program.launch]]
    waiting = program.line_of[events.track[program.waits]]
    for number in range(len(program.lines)):
        work = np.flatnonzero(line == number)
        work = work[np.argsort(events.start_ns[program.launch[work]], kind="stable")]
        waits = np.flatnonzero(waiting == number)
        slot = np.searchsorted(events.start_ns[program.launch[work]], start[waits]) - 1
        has_launched = slot >= 0
        used[waits[has_launched]] = program.stream[work[slot[has_launched]]]
    return used


def _use_recorded_streams(
    trace: Trace, program: Program, chosen: NDArray[np.bool_], fits: NDArray[np.bool_]
) -> None:
    """Take the stream from the device's own rows of waits, if the file has them."""
    events = trace.events
    rows = trace.rows(EventKind.DEVICE_SYNC)
    rows = rows[is_in(events.launched_by[rows], program.waits)]
    if len(rows) == 0:
        return
    tracks = events.track[program.work].tolist()
    numbers = dict(zip(tracks, program.stream.tolist(), strict=True))
    place = np.searchsorted(program.waits, events.launched_by[rows])
    for wait, track in zip(place.tolist(), events.track[rows].tolist(), strict=True):
        if track in numbers and fits[numbers[track], wait]:
            chosen[:, wait] = False
            chosen[numbers[track], wait] = True


def _work_of_blocking_copies(program: Program, end: Int64, finish: Int64) -> Int32:
    """For blocking copies, the work that they launched; -1 for all other waits."""
    work = np.full(len(program.waits), -1, dtype=np.int32)
    is_wait = is_in(program.launch, program.waits)
    position = np.flatnonzero(is_wait)
    place = np.searchsorted(program.waits, program.launch[position])
    done = finish[position] <= end[place] + ROUNDING_NS
    work[place[done]] = position[done]
    return work
