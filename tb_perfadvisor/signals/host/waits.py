"""Waits of the host for the device: what for, where from, and what each costs.

What the host may do with what it waits for, judged by what it does before its next launch.

A profile does not show whether a copied value is used. It shows whether a copy to the host was
pending when the host waited, and how much host code runs between the wait and the next launch. If
the next launch follows at once, the program does not look at the value for long: it reads the size
of a result, adds a number up, or nothing. If host code runs for much longer than usual between two
launches, it may work on the value, and then it has to stay after the wait.

What each wait for the device costs: the lead that the host loses in it, as far as it is missed.

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

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.causes import HOST_CAUSED, Cause
from tb_perfadvisor.signals.core.origins import node_name
from tb_perfadvisor.signals.launch.first_calls import first_calls
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.soundness.waits import waiting_calls
from tb_perfadvisor.trace import CopyDirection, EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in, places_by_value
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    covered_before,
    intersect,
    join,
    minus,
    overlap_ns,
    union,
)
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.tables import Int32, Int64

_DEEPEST = 12
"""Operators call each other a few levels deep."""
MIN_START_NS = 50_000
"""Five times what an idle GPU takes at most."""
MIN_STARTS = 8
"""Fewer late starts may have reasons of their own."""

# Frames that show why operators were called or arrays were read. Sources: torch/_tensor_str.py,
# torch/amp/grad_scaler.py, in older versions torch/cuda/amp/grad_scaler.py; jax/_src/array.py,
# jax/_src/numpy/array_methods.py, jax/_src/api.py.
_TELLING = regex(
    r"torch/_tensor_str\.py\(|amp/grad_scaler\.py\("
    r"|^\$array\.py:\d+ (__(float|int|index|complex|bool|format|str|repr)__|tolist)$"
    r"|^\$array_methods\.py:\d+ _item$|^\$api\.py:\d+ device_get$"
)
_CHECKS_GRADIENTS = "aten::_amp_foreach_non_finite_check_and_unscale_"


class WaitCallSite(Struct, frozen=True):
    """Waits of the used window with the same call site."""

    rows: Int32
    """The calls."""
    calls: tuple[str, ...]
    operators: tuple[str, ...]
    """Around the calls, innermost first, within the autograd node if there is one."""
    node: str
    """The autograd node; empty outside the backward pass."""
    forward: str
    """Its forward operator; empty when unknown."""
    module: str | None
    line: str | None
    copies: CopyDirection
    """What the innermost operator copies."""
    frame: str
    """The frame of the framework that shows what the wait is for; empty if unknown."""
    checks_gradients: bool
    """Whether they follow a check of gradients for infinities."""
    count: int
    """Waits: a copy and the synchronization that it ends with are one."""
    duration_ns: int
    induced_ns: int


@memoized
def wait_call_sites(signals: Signals) -> tuple[WaitCallSite, ...]:
    """All waits by call site; those that induce the most idle time come first."""
    trace, waits = signals.trace, signals.synchronizations
    if len(waits) == 0:
        return ()
    events, origin = trace.events, signals.origins
    node, forward = origin.node[waits.row], origin.forward[waits.row]
    chain = _chain(signals, waits.row, node)
    telling = _telling(trace, waits.row)
    key = np.stack(
        (
            *(_names(trace, rows) for rows in chain.T),
            _names(trace, node),
            _names(trace, forward),
            origin.module[waits.row],
            origin.line[waits.row],
            _copied(signals, waits.row),
            _names(trace, telling),
            _after_check(trace, waits.row, chain),
        ),
        axis=1,
    )
    first, site = group_rows(*key.T)
    is_part = _is_part_of_next(trace, waits.row, signals.launching_operator)
    order = np.argsort(site, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(site))[:-1])
    sites = [
        WaitCallSite(
            rows=waits.row[index],
            calls=tuple(dict.fromkeys(trace.texts(events.name[waits.row[index[:_DEEPEST]]]))),
            operators=tuple(trace.name(row) for row in chain[at].tolist() if row >= 0),
            node=node_name(trace, int(node[at])) if node[at] >= 0 else "",
            forward=trace.name(int(forward[at])) if forward[at] >= 0 else "",
            module=origin.module_of(int(waits.row[at])),
            line=origin.line_of(int(waits.row[at])),
            copies=CopyDirection(int(key[at, -3])),
            frame=trace.name(int(telling[at])) if telling[at] >= 0 else "",
            checks_gradients=bool(key[at, -1]),
            count=len(index) - int(is_part[index].sum()),
            duration_ns=int(waits.duration_ns[index].sum()),
            induced_ns=int(waits.induced_ns[index].sum()),
        )
        for at, index in zip(first.tolist(), members, strict=True)
    ]
    return tuple(sorted(sites, key=lambda site: -site.induced_ns))


def is_whole_wait(signals: Signals) -> NDArray[np.bool_]:
    """For each synchronization, whether it counts as a wait, and is not a part of the next one."""
    return ~_is_part_of_next(
        signals.trace, signals.synchronizations.row, signals.launching_operator
    )


def wait_count(sites: tuple[WaitCallSite, ...]) -> int:
    """Number of waits at some call sites."""
    return sum(site.count for site in sites)


def _names(trace: Trace, rows: Int32) -> Int32:
    return np.where(rows >= 0, trace.events.name[rows], -1).astype(np.int32)


def _chain(signals: Signals, rows: Int32, node: Int32) -> NDArray[np.int32]:
    """The operators around each call, innermost first; shape (calls, levels), -1 for none."""
    parent, around = signals.trace.events.parent, signals.launching_operator
    operator, levels = around[rows], []
    for _ in range(_DEEPEST):
        # Operators outside the node are the call of `backward()`.
        operator = np.where(operator > node, operator, -1)
        levels.append(operator)
        above = np.where(operator >= 0, parent[operator], -1)
        operator = np.where(above >= 0, around[above], -1)
        if (operator < 0).all():
            break
    return np.stack(levels, axis=1).astype(np.int32)


def _copied(signals: Signals, rows: Int32) -> Int32:
    """`CopyDirection` of the copy in the innermost operator around each call."""
    trace, around = signals.trace, signals.launching_operator
    launch = trace.events.launched_by[trace.copies.row]
    copying = np.where(launch >= 0, around[launch], -1)
    direction = np.zeros(len(trace.events) + 1, dtype=np.int32)
    direction[copying[copying >= 0]] = trace.copies.direction[copying >= 0]
    # A call outside of any operator may launch its copy itself.
    direction[launch[launch >= 0]] = trace.copies.direction[launch >= 0]
    operator = around[rows]
    return np.where(operator >= 0, direction[operator], direction[rows]).astype(np.int32)


def _telling(trace: Trace, rows: Int32) -> Int32:
    events = trace.events
    frames = distinct(events.name[trace.rows(EventKind.PYTHON)]).tolist()
    names = [index for index in frames if _TELLING.search(trace.strings[index])]
    if not names:
        return np.full(len(rows), -1, dtype=np.int32)
    is_telling = is_in(events.name, names) & (events.kind == EventKind.PYTHON)
    return nearest(events.parent, is_telling)[rows]


def _after_check(trace: Trace, rows: Int32, chain: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether a check of gradients ran on the thread right before each call's operators."""
    is_checked = np.zeros(len(rows), dtype=np.bool_)
    if _CHECKS_GRADIENTS not in trace.strings:
        return is_checked
    events = trace.events
    check = trace.strings.index(_CHECKS_GRADIENTS)
    operators = trace.rows(EventKind.OPERATOR)
    depth = (chain >= 0).sum(axis=1)
    outermost = chain[np.arange(len(rows)), np.maximum(depth - 1, 0)]
    operators_by_track = {
        track: operators[places] for track, places in places_by_value(events.track[operators])
    }
    for track, places in places_by_value(events.track[rows]):
        on_this_track = places[depth[places] > 0]
        on_track = operators_by_track.get(track)
        if on_track is None:
            continue
        slot = np.searchsorted(on_track, outermost[on_this_track]) - 1
        before = np.where(slot >= 0, on_track[np.maximum(slot, 0)], -1)
        is_checked[on_this_track] = (before >= 0) & (events.name[before] == check)
    return is_checked


def _is_part_of_next(trace: Trace, rows: Int32, around: Int32) -> NDArray[np.bool_]:
    """Mask of copies that the next call of the same operator waits for: both are one wait."""
    is_part = np.zeros(len(rows), dtype=np.bool_)
    order = np.argsort(around[rows], kind="stable")
    first, second = order[:-1], order[1:]
    is_sync = trace.events.kind[rows] == EventKind.SYNCHRONIZE
    operator: Int64 = around[rows].astype(np.int64)
    same = (operator[first] == operator[second]) & (operator[first] >= 0)
    is_part[first[same & ~is_sync[first] & is_sync[second]]] = True
    return is_part


READING_NS = 150_000
"""Reading, comparing, adding or printing a few numbers takes Python some tens of microseconds.
Working on the contents of a tensor takes longer."""
_COPYING = regex(r"^aten::(copy_|_to_copy|to)$")
_READS_ARRAY = "np.asarray(jax.Array)"
"""`float()`, `.tolist()` and `jax.device_get()` call it, too (jax/_src/array.py)."""
TIMES_USUAL = 10
"""On a slow host, such as one that records stacks, everything between two launches takes longer."""


class AwaitedValues(Struct, frozen=True):
    """What `Signals.synchronizations` hand to the host; columns of shape (waits,)."""

    row: Int32
    """In ascending order."""
    is_copied: NDArray[np.bool_]
    """Whether a copy to the host was launched since the wait before."""
    is_needed_at_once: NDArray[np.bool_]
    """Whether an operator waits for what it works with next, such as the size of its result.
    Copying operators wait for their copy alone."""
    host_code_ns: Int64
    """Host code between the wait and the next launch: neither the rest of the operator that waits
    nor the beginning of the operator that launches."""
    may_be_used: NDArray[np.bool_]
    """Whether that code is long enough, on average over the waits of a call site, to work on the
    value that was copied."""

    def mean_host_code_ns(self, rows: Int32) -> int | None:
        """Mean host code after some of the waits; None if they hand over no value.

        `rows` are some of `row`.
        """
        chosen = np.searchsorted(self.row, rows)
        if not self.is_copied[chosen].any():
            return None
        return int(self.host_code_ns[chosen].mean())


@memoized
def awaited_values(signals: Signals) -> AwaitedValues:
    """What the waits of the used window hand to the host."""
    waits = signals.synchronizations
    is_copied = _is_copied(signals)
    host_code_ns = _host_code_ns(signals, waits.row, waits.next_launch)
    longest_ns = np.maximum(TIMES_USUAL * _usual_ns(signals), READING_NS)
    mean_ns = host_code_ns.astype(np.float64)
    for site in wait_call_sites(signals):
        of_site = np.searchsorted(waits.row, site.rows)
        mean_ns[of_site] = mean_ns[of_site].mean()
    may_be_used = is_copied & (mean_ns > longest_ns)
    at_once = _is_inside_operator(signals)
    return AwaitedValues(waits.row, is_copied, at_once, host_code_ns, may_be_used)


def _is_inside_operator(signals: Signals) -> NDArray[np.bool_]:
    """Whether an operator other than a copying one does each wait."""
    operator = signals.launching_operator[signals.synchronizations.row]
    inside = np.flatnonzero(operator >= 0)
    is_inside = np.zeros(len(operator), dtype=np.bool_)
    is_inside[inside] = ~named(signals.trace, operator[inside], _COPYING)
    return is_inside


def _is_copied(signals: Signals) -> NDArray[np.bool_]:
    """Whether each wait may hand a value to the host.

    Waits without a launch in between, such as a copy and its synchronization, hand over together.
    JAX names the call that hands a value over.
    """
    trace, waits = signals.trace, signals.synchronizations
    events, copies = trace.events, trace.copies
    hands_over = np.array([name == _READS_ARRAY for name in trace.strings], dtype=np.bool_)
    to_host = copies.row[copies.direction == CopyDirection.DEVICE_TO_HOST]
    launch = events.launched_by[to_host]
    copied_ns = np.sort(events.start_ns[np.where(launch >= 0, launch, to_host)])
    is_copied = np.zeros(len(waits), dtype=np.bool_)
    track = events.track[waits.row]
    for _, on_track in places_by_value(track):
        before = np.searchsorted(copied_ns, events.end_ns[waits.row[on_track]])
        follows = waits.next_launch[on_track]
        begins = np.diff(follows, prepend=-1) != 0
        group = np.cumsum(begins) - 1
        last = np.append(np.flatnonzero(begins)[1:] - 1, len(on_track) - 1)
        is_copied[on_track] = (np.diff(before[last], prepend=0) > 0)[group]
    return is_copied | hands_over[events.name[waits.row]]


def _usual_ns(signals: Signals) -> Int64:
    """For each wait, the usual host code of its thread between launches without a wait in between.

    It is 0 if there are none.
    """
    events, waits = signals.trace.events, signals.synchronizations
    calls = distinct(events.launched_by[signals.device.rows])
    calls = calls[calls >= 0]
    usual_ns = np.zeros(len(waits), dtype=np.int64)
    calls_by_track = {
        track: calls[places] for track, places in places_by_value(events.track[calls])
    }
    for track, waiting in places_by_value(events.track[waits.row]):
        on_track: Int32 = calls_by_track.get(track, calls[:0])
        has_not_waited = ~is_in(on_track[1:], waits.next_launch)
        between_ns = _host_code_ns(
            signals, on_track[:-1][has_not_waited], on_track[1:][has_not_waited]
        )
        if len(between_ns):
            usual_ns[waiting] = int(np.median(between_ns))
    return usual_ns


def _host_code_ns(signals: Signals, first: Int32, following: Int32) -> Int64:
    """Time from the operator around a call to the operator around a later call on its thread."""
    events, around = signals.trace.events, signals.launching_operator
    after_ns, before_ns = events.end_ns[first].copy(), events.start_ns[following].copy()
    limit_ns, returned_ns = before_ns.copy(), after_ns.copy()
    for rows, bound_ns, edge_ns, other_ns, sign in (
        (first, after_ns, events.end_ns, limit_ns, 1),
        (following, before_ns, events.start_ns, returned_ns, -1),
    ):
        operator = around[rows]
        at = np.flatnonzero(operator >= 0)
        operator = operator[at]
        # One pass per level: operators around only one of the two calls.
        while len(at):
            fits = sign * edge_ns[operator] <= sign * other_ns[at]
            at, operator = at[fits], operator[fits]
            bound_ns[at] = edge_ns[operator]
            above = events.parent[operator]
            operator = np.where(above >= 0, around[above], -1)
            at, operator = at[operator >= 0], operator[operator >= 0]
    between_ns: Int64 = np.maximum(before_ns - after_ns, 0)
    return between_ns


@memoized
def awaited_collectives(signals: Signals) -> Intervals:
    """Queued idle time that ends with a collective: it was launched, and the device is free for it.

    A collective waits for the stream that made its input, or for earlier collectives. The idle time
    is one of communication as much as the time in which the collective waits for its peers.
    """
    idle, events = signals.attribution.idle, signals.trace.events
    gaps = np.flatnonzero(idle.next_row >= 0)
    gaps = gaps[events.kind[idle.next_row[gaps]] == EventKind.COLLECTIVE]
    if not len(gaps):
        return EMPTY
    waiting = union(idle.queued_from_ns[gaps], idle.end_ns[gaps])
    return intersect(signals.attribution.intervals[Cause.QUEUED], waiting)


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

    `chosen` has shape (waits,), as `signals.synchronizations`.
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

    `lead_ns` is what each wait adds to the lead, and `idle_ns` the idle time after it until the
    next one. Waits that stay are put off, but the lead from before them is lost there, and so is
    what they leave of their own.
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
    until_ns = covered_before(idle, begin_ns)[0] + length_ns
    place = np.searchsorted(ends_ns, until_ns)
    return intersect(idle, union(begin_ns, idle[place, 1] - (ends_ns[place] - until_ns)))


@memoized
def slow_starts(signals: Signals) -> Intervals:
    """Idle time while launched work is on its way to the device, and the host waits for it.

    An idle GPU starts a kernel 2 to 10 microseconds after its launch. Where it takes far longer
    each time, nothing blocks the stream: the machine passes launches on late, as virtual machines,
    Windows and remote GPUs do. That delay is hidden while work is queued, and shows each time that
    the host has let the queue run empty. So it is a price of waiting for the device.

    Empty if the usual launch reaches an idle device at once.
    """
    events, gaps = signals.trace.events, signals.attribution.idle
    launched = np.flatnonzero((gaps.launch_row >= 0) & (gaps.next_row >= 0))
    launch, work = gaps.launch_row[launched], gaps.next_row[launched]
    into_idle = (events.start_ns[launch] >= gaps.start_ns[launched]) & (
        events.kind[work] != EventKind.COLLECTIVE
    )
    delay_ns = gaps.end_ns[launched] - events.end_ns[launch]
    if int(into_idle.sum()) < MIN_STARTS or np.median(delay_ns[into_idle]) < MIN_START_NS:
        return EMPTY
    waits = signals.synchronizations.row
    waiting = events.spans(waits)
    return intersect(signals.attribution.intervals[Cause.QUEUED], waiting)
