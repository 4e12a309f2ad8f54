"""Loops that could compute many trips at once, because their state is linear."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.graph import FasterOperation
from tb_perfadvisor.signals.program.linear_recurrences import in_parallel, linear_loops


class LinearRecurrence(FasterOperations):
    """A loop goes through positions one by one, although its state is linear.

    What it finds
    -------------
    Loops of 64 trips or more whose state is only multiplied by something that does not depend on
    it, and added to: linear attention, state-space models, gated linear units, moving averages. The
    embedded program shows how each trip computes the next state.

    Why it matters
    --------------
    Each trip waits for the one before, and works on one position: small arrays that fill neither
    the matrix unit nor the vector unit. Trips of a linear state can be combined in pairs, or in
    chunks that are matrix products.

    How it is measured
    ------------------
    If each trip adds the product of a column and a row to a state that decays alike along one of
    them, a chunk of 128 positions takes the FLOP of its products, four operations on each pair of
    its positions, and ten microseconds for some twenty small operations. Otherwise, combining pairs
    moves and computes each element six times, at best twice. What else each trip computes remains,
    at usual rates, and no trip takes less than moving its inputs and results. High is the same at
    the peaks of the data sheet; low is half of what is expected.

    When to ignore
    --------------
    When the next input depends on the last output, as in decoding.

    How to verify
    -------------
    The loop is gone, or has as many trips as there are chunks.

    References:
    ----------
    JAX documentation, "jax.lax.associative_scan"; Yang, Wang, Shen, Panda, Kim, "Gated linear
    attention transformers with hardware-efficient training" (2024), section 2.2.
    """

    id = "linear-recurrence"
    title = "Compute many positions of a linear recurrence at once"

    minimum_share = Limit(0.1, "share", "The change rewrites a layer, which has to pay.")

    noun = "operation"

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The operations of the loops."""
        return in_parallel(signals)

    def advice(self, signals: Signals) -> tuple[str, ...]:
        """Chunks where an outer product is added, pairs otherwise."""
        is_outer = any(loop.column is not None for loop in linear_loops(signals))
        return ("chunked-recurrence",) if is_outer else ("associative-scan",)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The loop of most trips."""
        worst = max(linear_loops(signals), key=lambda loop: loop.trips)
        program = worst.running.program
        state = max(map(program.shape_of, worst.state), key=lambda shape: shape.elements)
        line = next((program.lines[row] for row in sorted(worst.state) if row in program.lines), "")
        where = f" in {line}" if line else ""
        return f"{worst.trips:,.0f} trips{where}", (
            f"{cost} goes into a loop of {worst.trips:,.0f} trips{where}, whose state, {state}, is"
            " only multiplied and added to. So the trips need not wait for one another."
        )
