"""What each waiting call waits for, and what it costs by itself.

Files seldom keep which stream a call waits for. A call that was held up returned right after
the work it waited for; one that was not is taken to mean the stream that its thread last used.
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
"""A call that has nothing to wait for takes about as long as a launch; one that takes that many
times longer waits for something."""

_EVERY_STREAM = re.compile(r"^(cuda|hip)DeviceSynchronize|^(cu|hip)CtxSynchronize")


class WaitArcs(Struct, frozen=True):
    """Waiting calls, and the work that each waits for."""

    row: Int32
    """Of the calls; shape (waits,)."""
    returns_ns: Int64
    cost_ns: Int64
    """What the call takes when there is nothing to wait for."""
    wait: Int32
    """Position in `row`; shape (arcs,)."""
    work: Int32
    """Position in `Program.work`, -1 for what came before the window."""
    stream: Int32
    lag_ns: Int64
    unexplained_ns: int
    """How long calls took beyond their usual cost without any work to show for it."""


def wait_arcs(trace: Trace, program: Program) -> WaitArcs:
    """The arcs into the window's waits."""
    events, rows = trace.events, program.waits
    start, end = events.start_ns[rows], np.minimum(events.end_ns[rows], program.end_ns)
    wait, work, stream = _waited_for(trace, program, start, end)
    finished = np.where(work >= 0, events.end_ns[program.work[work]], program.tail_ns[stream])
    returns = end.copy()
    np.maximum.at(returns, wait, finished)
    length = returns - start
    # Of several streams it is the last to finish that shows.
    latest = np.full(len(rows), NEVER, dtype=np.int64)
    np.maximum.at(latest, wait, finished)
    is_last = finished == latest[wait]
    held = is_last & (finished > start[wait])
    overhead = returns[wait] - finished
    # Waits that were long show what remains to do after them, the others what a call costs.
    clear = held & (finished - start[wait] > overhead)
    after = int(np.median(overhead[clear])) if clear.any() else 0
    was_held = np.zeros(len(rows), dtype=np.bool_)
    was_held[wait[held]] = True
    is_launch = row_mask(len(events), program.launch)
    is_copy = is_launch[rows]
    is_launch[rows] = False
    calls = np.flatnonzero(is_launch)
    launching = _usual(events.duration_ns[calls], after)
    synchronizing = _usual(length[~was_held & ~is_copy], after)
    cost = np.where(is_copy, launching, min(synchronizing, MOST_LAUNCHES * launching))
    # The call's return shows what held it up, unless its own cost explains its length better.
    binding = is_last & (np.abs(overhead - after) <= np.abs(length - cost)[wait])
    is_bound = np.zeros(len(rows), dtype=np.bool_)
    is_bound[wait[binding]] = True
    unexplained = length - cost
    np.minimum.at(unexplained, wait[is_last], (overhead - after)[is_last])
    return WaitArcs(
        row=rows,
        returns_ns=returns,
        cost_ns=np.where(is_bound, np.minimum(cost, length), length),
        wait=wait,
        work=work,
        stream=stream,
        lag_ns=np.where(binding, overhead, np.minimum(after, overhead)),
        unexplained_ns=int(np.maximum(unexplained, 0).sum()),
    )


def _usual(values: Int64, otherwise: int) -> int:
    return int(np.median(values)) if len(values) else otherwise


def _waited_for(
    trace: Trace, program: Program, start: Int64, end: Int64
) -> tuple[Int32, Int32, Int32]:
    """What waits, and for what: positions of the wait and the work, and the work's stream."""
    events, rows, stream = trace.events, program.waits, program.stream
    finish = events.end_ns[program.work]
    count = len(program.tail_ns)
    # Per stream, the last work enqueued before each wait, and when the record has its end.
    last = np.full((count, len(rows)), -1, dtype=np.int32)
    for number in range(count):
        of_stream = np.flatnonzero(stream == number)
        launched = np.maximum.accumulate(events.start_ns[program.launch[of_stream]])
        slot = np.searchsorted(launched, start, side="left") - 1
        last[number] = np.where(slot >= 0, of_stream[np.maximum(slot, 0)], -1)
    ended = np.where(last >= 0, finish[last], program.tail_ns[:, None])
    # A stream whose work went on after the call's return is not the one it waited for.
    fits = ended <= end + ROUNDING_NS
    names = [trace.name(row) for row in rows.tolist()]
    every = np.array([bool(_EVERY_STREAM.match(name)) for name in names], dtype=np.bool_)
    chosen = fits & every
    choice = np.where(fits, ended, NEVER - 1).argmax(axis=0)
    held = ended[choice, np.arange(len(rows))] > start
    choice = np.where(held, choice, _last_used(trace, program, start))
    one = np.flatnonzero(~every)
    chosen[choice[one], one] = fits[choice[one], one]
    _know_streams(trace, program, chosen, fits)
    own_copy = _own_copies(program, end, finish)
    copies = np.flatnonzero(own_copy >= 0)
    chosen[:, copies] = False
    streams, wait = np.nonzero(chosen)
    return (
        np.concatenate((wait, copies)).astype(np.int32),
        np.concatenate((last[streams, wait], own_copy[copies])).astype(np.int32),
        np.concatenate((streams, stream[own_copy[copies]])).astype(np.int32),
    )


def _last_used(trace: Trace, program: Program, start: Int64) -> Int32:
    """The stream that the waiting thread launched work on last; the busiest before any."""
    events = trace.events
    used = np.full(len(start), np.bincount(program.stream).argmax(), dtype=np.int32)
    line = program.line_of[events.track[program.launch]]
    waiting = program.line_of[events.track[program.waits]]
    for number in range(len(program.lines)):
        own = np.flatnonzero(line == number)
        own = own[np.argsort(events.start_ns[program.launch[own]], kind="stable")]
        mine = np.flatnonzero(waiting == number)
        slot = np.searchsorted(events.start_ns[program.launch[own]], start[mine]) - 1
        found = slot >= 0
        used[mine[found]] = program.stream[own[slot[found]]]
    return used


def _know_streams(
    trace: Trace, program: Program, chosen: NDArray[np.bool_], fits: NDArray[np.bool_]
) -> None:
    """Where the file has the device's own rows of waits, they name the stream."""
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


def _own_copies(program: Program, end: Int64, finish: Int64) -> Int32:
    """For blocking copies the work that they launched; -1 for all other waits."""
    own = np.full(len(program.waits), -1, dtype=np.int32)
    is_wait = is_in(program.launch, program.waits)
    position = np.flatnonzero(is_wait)
    place = np.searchsorted(program.waits, program.launch[position])
    done = finish[position] <= end[place] + ROUNDING_NS
    own[place[done]] = position[done]
    return own
