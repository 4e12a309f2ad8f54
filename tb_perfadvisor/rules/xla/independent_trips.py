"""Loops whose trips could be one batch."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.graph import FasterOperation, total_ns
from tb_perfadvisor.signals.program.independent_trips import (
    IndependentLoop,
    as_one_batch,
    independent_trips,
)


class IndependentTrips(FasterOperations):
    """A loop multiplies by the same weights in each trip, although no trip needs another.

    What it finds
    -------------
    Loops with products by arrays that are the same in every trip, where nothing passes from trip to
    trip but sums of their results, and arrays in which each trip stores what depends on nothing
    that is read from the same array: microbatches of one step, samples one by one, or given words
    whose keys and values go into a cache. The embedded program shows what is computed from what.

    Why it matters
    --------------
    Each trip reads the weights and the caches again, and its products have few rows. One batch of
    all trips reads them once. Microbatches save memory, which is worth it only where memory is
    short.

    How it is measured
    ------------------
    What an operation that reads such an array needs in a batch is the longest of its FLOP, its
    other arithmetic, and its bytes, with that array's divided by the trips. If all arguments of the
    program and all that a step writes fit into 90 % of the device's memory, that holds for all
    trips at once; otherwise for every two. Half of the copies of caches around the loop goes, too.
    High is all of these copies, and the rest at the peaks of the data sheet; low is half of what is
    expected, without copies.

    When to ignore
    --------------
    When memory is short, or when each trip fills the device already.

    How to verify
    -------------
    The loop is gone or has fewer trips, and the products have more rows.

    References:
    ----------
    JAX documentation, "jax.lax.scan" and "jax.vmap".
    """

    id = "independent-trips"
    title = "Run independent trips of a loop as one batch"

    minimum_share = Limit(0.05, "share", "A larger batch has to be worth its memory.")

    noun = "operation"
    changes = ("fewer-microbatches", "parallel-trips")

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """What reads the same arrays in every trip."""
        return as_one_batch(signals)

    def advice(self, signals: Signals) -> tuple[str, ...]:
        """Positions need a mask where later ones read what earlier ones store."""
        return ("positions-at-once",) if _costliest(signals).reads_stores else self.changes

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The costliest loop."""
        worst = _costliest(signals)
        line = next(filter(None, map(worst.running.program.lines.get, worst.readers)), "")
        where = f" in {line}" if line else ""
        stores = " more of another than what it stores" if worst.reads_stores else " another"
        return f"{worst.trips:,} trips{where}", (
            f"{cost} goes into reading the same weights in each of {worst.trips:,} trips of a"
            f" loop{where}. No trip needs{stores}."
        )


def _costliest(signals: Signals) -> IndependentLoop:
    loops = independent_trips(signals)
    return max(loops, key=lambda loop: total_ns(signals, loop.running.of(loop.readers)))
