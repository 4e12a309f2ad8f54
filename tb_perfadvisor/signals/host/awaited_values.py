"""What the host may do with what it waits for, judged by what it does before its next launch.

A profile does not show whether a copied value is used. It shows whether a copy to the host was
pending when the host waited, and how much host code runs between the wait and the next launch. If
the next launch follows at once, the program does not look at the value for long: it reads the size
of a result, adds a number up, or nothing. If host code runs for much longer than usual between two
launches, it may work on the value, and then it has to stay after the wait.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.host.wait_call_sites import wait_call_sites
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import CopyDirection
from tb_perfadvisor.trace.event_names import named
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value
from tb_perfadvisor.trace.tables import Int32, Int64

READING_NS = 150_000
"""Reading, comparing, adding or printing a few numbers takes Python some tens of microseconds.
Working on the contents of a tensor takes longer."""
_COPYING = re.compile(r"^aten::(copy_|_to_copy|to)$")
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

        Args:
            rows: Some of `row`.
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
    """Time from the operator around a call to the operator around a later call on its thread.

    Args:
        signals: The worker's facts.
        first: Rows of calls; shape (n,).
        following: Rows of later calls on the same threads; shape (n,).
    """
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
