"""Loops of which each trip takes next to no time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.tpu.loops import loops
from tb_perfadvisor.trace.intervals import clip, total_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import format_duration


class ShortLoopTrips(Rule):
    """A loop spends much of its time on starting trips and on counting them.

    What it finds
    -------------
    Loops (`while`, from `jax.lax.scan` or a recurrent layer) whose trips take less than a fifth of
    a microsecond.

    Why it matters
    --------------
    Each trip adds to a counter, compares it and slices its inputs, and operations of different
    trips do not overlap. In trips this short, that takes as long as the work.

    How it is measured
    ------------------
    The duration of the loop, divided by how often its operations run. High is half of the loops'
    time. Expected is a fifth, which is what unrolling eight trips saves in a scan over cells of 8
    by 128 numbers, as XLA's compiler estimates. Low is 0.

    When to ignore
    --------------
    When compiling takes too long with a larger body.

    How to verify
    -------------
    The loop has fewer trips, and takes less time.

    References:
    ----------
    JAX documentation, "jax.lax.scan", on unroll.
    """

    id = "short-loop-trips"
    title = "Unroll loops of very short trips"
    category = "xla"
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS)

    minimum_share = Limit(0.1, "share", "A fifth of a smaller share is less than 2 % of the step.")
    maximum_trip_ns = Limit(
        200, "ns", "An unrolled scan over cells of 8 by 128 numbers takes longer for each trip."
    )
    minimum_trips = Limit(8, "count", "Fewer trips start within a microsecond or two.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when loops of short trips take a good part of the step."""
        found, events, window = loops(signals), signals.trace.events, signals.attribution
        is_short = found.trips >= self.minimum_trips
        is_short &= events.duration_ns[found.row] < self.maximum_trip_ns * found.trips
        rows, trips = found.row[is_short], found.trips[is_short]
        time = union(events.start_ns[rows], events.end_ns[rows])
        claims = clip(time, window.window_start_ns, window.window_end_ns)
        looped_ns = total_ns(claims)
        if self.is_minor(looped_ns, signals):
            return
        duration_ns = events.duration_ns[rows]
        trip_ns = int(duration_ns.sum()) // int(trips.sum())
        yield Finding(
            instance=f"{format_duration(trip_ns)} each",
            summary=(
                f"{per_step(looped_ns, signals)} goes into loops whose trips take"
                f" {format_duration(trip_ns)} on average ({int(trips.max())} trips at most)."
            ),
            saving=Saving(0, looped_ns // 5, looped_ns // 2, claims, "heuristic"),
            evidence=(
                _table(signals, rows, trips),
                costliest("Longest loops of short trips", signals.worker, rows, duration_ns),
            ),
            remedies=advise("unrolled-loop", "parallel-trips"),
        )


def _table(signals: Signals, rows: Int32, trips: Int64) -> Table:
    """The loops by name, the costliest first."""
    trace = signals.trace
    names, inverse = np.unique(trace.events.name[rows], return_inverse=True)
    total = np.bincount(inverse, weights=trace.events.duration_ns[rows]).astype(np.int64)
    of_name = np.bincount(inverse, weights=trips).astype(np.int64)
    return Table(
        "Loops of short trips",
        (
            Column("loop", "Loop"),
            Column("trips", "Trips", "count"),
            Column("total_ns", "Time", "ns"),
            Column("trip_ns", "Time of a trip", "ns"),
        ),
        tuple(
            (
                trace.strings[names[index]],
                int(of_name[index]),
                int(total[index]),
                int(total[index]) // int(of_name[index]),
            )
            for index in np.argsort(-total, kind="stable").tolist()
        ),
    )
