"""Loops whose trips could be one batch."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.graph import FasterOperation, total_ns
from tb_perfadvisor.signals.program.independent_trips import as_one_batch, independent_trips


class IndependentTrips(FasterOperations):
    """A loop multiplies by the same weights in each trip, although no trip needs another.

    What it finds
    -------------
    Loops with products by arrays that are the same in every trip, where nothing passes from trip to
    trip but sums of their results: microbatches of one step, or samples one by one. The embedded
    program shows what each trip computes from what.

    Why it matters
    --------------
    Each trip reads the weights again, and its products have few rows. One batch of all trips reads
    them once. Microbatches save memory, which is worth it only where memory is short.

    How it is measured
    ------------------
    What a trip's products need in a batch is the longest of their FLOP, their other arithmetic, and
    their bytes, with the weights divided by the trips. If all arguments of the program and all that
    a step writes fit into 90 % of the device's memory, that holds for all trips at once; otherwise
    for every two. High is the same at the peaks of the data sheet; low is half of what is expected.

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

    noun = "product"
    changes = ("fewer-microbatches", "parallel-trips")

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The products by weights that every trip reads."""
        return as_one_batch(signals)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The costliest loop."""
        worst = max(
            independent_trips(signals),
            key=lambda loop: total_ns(signals, loop.running.of(loop.products)),
        )
        line = worst.running.program.lines.get(worst.products[0], "")
        where = f" in {line}" if line else ""
        return f"{worst.trips:,} trips{where}", (
            f"{cost} goes into products by the same weights in each of {worst.trips:,} trips of a"
            f" loop{where}. No trip needs the result of another."
        )
