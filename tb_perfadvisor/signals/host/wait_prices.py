"""What each wait for the device costs: the lead that the host loses in it, as far as it is missed.

While the host waits for d ns, it could prepare what comes next: without the wait, it would be ahead
by d. When the wait returns, its lead is zero, and grows back only at the difference between the
rates of launching and of executing. Where launching is slower, the device idles. So a wait costs
the idle time in the stretch from it to the next wait, up to d.

A lead that is not used up in a stretch serves in the next one, unless the host waits there all the
same. Whether it must depends on the value that it waits for, and no event shows whether the program
needs that value. So there are two prices: one with the waits that may be needed, and one without.
Of two equally plausible prices, the middle is expected.

Waits that nothing is launched between (a copy and its synchronization) are one wait. A copy that
the host does not wait for is still launched, so launching it is not a part of the lead.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.causes import HOST_CAUSED, Cause
from tb_perfadvisor.signals.host.awaited_values import awaited_values
from tb_perfadvisor.signals.host.slow_starts import slow_starts
from tb_perfadvisor.signals.launch.first_calls import first_calls
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.soundness.waits import waiting_calls
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import (
    Intervals,
    covered_before,
    intersect,
    join,
    minus,
    overlap_ns,
    union,
)
from tb_perfadvisor.trace.tables import Int64

Mask = NDArray[np.bool_]


class WaitPrices(Struct, frozen=True):
    """Prices of `Signals.synchronizations`, in ns; columns of shape (waits,).

    The price of waits that are one belongs to the first one, and the others have 0.
    """

    lead_ns: Int64
    """How far the host would be ahead without the wait."""
    idle_ns: Int64
    """Idle time that the host causes, from the wait to the next one, and that of slow starts."""
    if_needed_ns: Int64
    """Idle time that disappears if the program needs all values that it may need. Then a wait that
    hands over a value is only put off, and keeps later ones from profiting. One of an operator that
    works with the value at once stays where it is."""
    if_free_ns: Int64
    """Idle time that disappears if it needs no value but those that it works on at once."""
    expected_from: Intervals
    """The first part of the idle time after each wait, as long as `expected_ns`."""

    @property
    def expected_ns(self) -> Int64:
        """The middle of both prices."""
        return (self.if_needed_ns + self.if_free_ns) // 2


def wait_prices(signals: Signals, chosen: Mask) -> WaitPrices:
    """The prices of some waits, if all others stay.

    Args:
        signals: The worker's facts.
        chosen: Which of its `synchronizations`, shape (waits,).
    """
    waits, window, events = signals.synchronizations, signals.attribution, signals.trace.events
    values = awaited_values(signals)
    # What happens once does so with and without the waits.
    idle = minus(window.of(*HOST_CAUSED, Cause.BETWEEN_STEPS), first_calls(signals).idle)
    idle = join(idle, slow_starts(signals))
    bounds = window.window_start_ns, window.window_end_ns
    track, follows = events.track[waits.row], waits.next_launch
    is_first = (np.diff(follows, prepend=-2) != 0) | (np.diff(track, prepend=-1) != 0)
    first = np.flatnonzero(is_first)
    begin_ns = np.clip(events.start_ns[waits.row[first]], *bounds)
    # Threads that take turns may wait at the same time. That is one lead. What the host does
    # between two waits of a group is no wait.
    return_ns = np.clip(events.end_ns[waits.row], *bounds)
    before_ns = np.maximum.accumulate(np.append(bounds[0], return_ns[:-1]))
    waited_ns = np.maximum(return_ns - np.maximum(events.start_ns[waits.row], before_ns), 0)
    lead_ns = np.add.reduceat(waited_ns, first)
    lead_ns = np.maximum(lead_ns - np.add.reduceat(_launching_ns(signals), first), 0)
    until_ns = np.clip(_next_waits_ns(signals, first), begin_ns, bounds[1])
    idle_ns = overlap_ns(idle, begin_ns, until_ns)

    def price(may_be_needed: Mask, lead_ns: Int64) -> Int64:
        is_priced = np.logical_or.reduceat(chosen, first)
        stays = ~is_priced | np.logical_or.reduceat(may_be_needed, first)
        return np.where(is_priced, _disappears_ns(lead_ns, idle_ns, stays), 0)

    # An operator that works with what it waits for cannot put the wait off.
    at_once = np.logical_or.reduceat(values.is_needed_at_once, first)
    if_needed_ns = price(values.is_copied | values.is_needed_at_once, np.where(at_once, 0, lead_ns))
    if_free_ns = price(values.may_be_used, lead_ns)

    def of_waits(values_ns: Int64) -> Int64:
        column = np.zeros(len(waits), dtype=np.int64)
        column[first] = values_ns
        return column

    return WaitPrices(
        lead_ns=of_waits(lead_ns),
        idle_ns=of_waits(idle_ns),
        if_needed_ns=of_waits(if_needed_ns),
        if_free_ns=of_waits(if_free_ns),
        expected_from=_first_part(idle, begin_ns, (if_needed_ns + if_free_ns) // 2),
    )


def _launching_ns(signals: Signals) -> Int64:
    """For each wait, how long launching its copy takes by itself; 0 if it launches nothing."""
    trace, waits = signals.trace, signals.synchronizations
    launches = trace.rows(EventKind.LAUNCH)
    others = launches[~is_in(launches, waits.row)]
    usual_ns = int(np.median(trace.events.duration_ns[others])) if len(others) else 0
    return np.where(is_in(waits.row, launches), usual_ns, 0).astype(np.int64)


def _next_waits_ns(signals: Signals, first: Int64) -> Int64:
    """When the first wait after each group of waits begins, by the places of the groups.

    Waits that nothing is launched after, such as the last one, have no price but end a stretch.
    """
    events, rows = signals.trace.events, signals.synchronizations.row
    calls = waiting_calls(signals.trace)
    calls = calls[is_in(events.track[calls], distinct(events.track[rows]))]
    last = np.append(first[1:] - 1, len(rows) - 1)
    begin_ns = np.append(events.start_ns[calls], np.iinfo(np.int64).max)
    following: Int64 = begin_ns[np.searchsorted(calls, rows[last], side="right")]
    return following


def _disappears_ns(lead_ns: Int64, idle_ns: Int64, stays: Mask) -> Int64:
    """How much of the idle time after each wait disappears.

    Args:
        lead_ns: What each wait adds to the lead, shape (n,).
        idle_ns: Idle time after it until the next one, shape (n,).
        stays: Which waits stay. They are put off, but the lead from before them is lost there, and
            so is what they leave of their own.
    """
    # What is left of the lead never gets negative: a random walk above its running minimum. A fall
    # below everything ends the lead.
    fall_ns = -int(lead_ns.sum()) - 1
    walk_ns = np.cumsum(np.where(stays, fall_ns, lead_ns - idle_ns))
    left_ns = walk_ns - np.minimum(np.minimum.accumulate(walk_ns), 0)
    from_before_ns = np.append(0, left_ns[:-1])
    return np.minimum(lead_ns + np.where(stays, 0, from_before_ns), idle_ns)


def _first_part(idle: Intervals, begin_ns: Int64, length_ns: Int64) -> Intervals:
    """The first `length_ns` of some idle time after each of some moments."""
    wanted = length_ns > 0
    begin_ns, length_ns = begin_ns[wanted], length_ns[wanted]
    ends_ns = np.cumsum(idle[:, 1] - idle[:, 0])
    until_ns = covered_before(idle, begin_ns) + length_ns
    place = np.searchsorted(ends_ns, until_ns)
    return intersect(idle, union(begin_ns, idle[place, 1] - (ends_ns[place] - until_ns)))
