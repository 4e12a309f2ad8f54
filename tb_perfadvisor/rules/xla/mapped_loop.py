"""Loops that map a function over the elements of a batch, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.program.graph import FasterOperation, mean_ns, total_ns
from tb_perfadvisor.signals.program.mapped_loops import Mapped, mapped_loops

_REMAINS = (0.25, 0.02, 1.0)
"""What remains of a product of few rows, as expected, at best and at worst. A vector by a matrix
waits for the memory; hundreds of rows at a time compute."""


class MappedLoop(FasterOperations):
    """A loop on the CPU maps a function over a batch, one element per trip.

    What it finds
    -------------
    Loops (`jax.lax.map`, or a `scan` whose trips only store or add up what they compute) with
    products of a few rows by weights that are the same in all trips.

    Why it matters
    --------------
    Each trip reads all weights, for one row. The rows of a batch share the reading.

    How it is measured
    ------------------
    Products of up to eight rows are expected to take a quarter of the time, at best 2 %, and at
    worst as long as now. For 512 rows by 128 x 512 and 512 x 512 weights, a batch took 40 % of the
    time of the loop. Other operations are not expected to gain.

    When to ignore
    --------------
    When all elements at a time do not fit in memory: then map over parts with `batch_size`.

    How to verify
    -------------
    The loop is gone, or has fewer trips.

    References:
    ----------
    JAX documentation, `jax.lax.map`, on `batch_size`, and `jax.vmap`.
    """

    id = "mapped-loop"
    title = "Compute the whole batch at once, not in a loop"

    minimum_share = Limit(0.1, "share", "Batches take more memory, and caches may not hold them.")
    minimum_trips = Limit(16, "count", "Fewer rows share little.")

    needs = (Need.WORK, Need.XLA_OPERATIONS, Need.PROGRAMS, Need.CPU_PROGRAM)

    noun = "product"
    changes = ("parallel-trips", "trips-in-parts")

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The products of such loops, with the rows of all trips together."""
        return [
            FasterOperation(operation, *(share * mean_ns(signals, operation) for share in _REMAINS))
            for loop in self._loops(signals)
            for operation in loop.products
        ]

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The costliest loop."""
        worst = max(self._loops(signals), key=lambda loop: total_ns(signals, loop.products))
        where = f" ({worst.line})" if worst.line else ""
        return f"{worst.trips:,} trips{where}", (
            f"{cost} goes into products of single rows in a loop of {worst.trips:,} trips, which"
            f" need nothing of one another{where}."
        )

    def _loops(self, signals: Signals) -> list[Mapped]:
        return [loop for loop in mapped_loops(signals) if loop.trips >= self.minimum_trips]
