"""Sorts of many elements of which a few are used."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.program.graph import FasterOperation, mean_ns, total_ns
from tb_perfadvisor.signals.program.partly_used_sorts import partly_used_sorts

_SAMPLED, _SELECTED = (0.05, 0.0, 0.25), (0.4, 0.0, 0.8)
"""What remains as expected, at best and at worst: of a shuffle if a sample is drawn, and of a sort
if the largest are selected."""


class SortedForFew(FasterOperations):
    """The step sorts many elements to use a few of them.

    What it finds
    -------------
    Sorts of which at most a quarter of the result is read, and what else shuffles for them. The
    embedded program shows it. Drawing without replacement, as `jax.random.choice` does, sorts
    random numbers for all elements. A `top_k` that XLA turned into a sort does not count.

    Why it matters
    --------------
    A sort compares each element many times, and a shuffle also draws random numbers for each of
    them. The work grows with what could be drawn, not with what is drawn.

    How it is measured
    ------------------
    Of a sample, expected leaves a twentieth of the time of the sort, and of the random numbers for
    it, low a quarter, and high nothing. Of other sorts, which a selection replaces, 40 % remain as
    expected, at worst 80 %, and at best nothing.

    When to ignore
    --------------
    When no element may be drawn twice and the sample is a large part of all.

    How to verify
    -------------
    The sort is gone from the step.

    References:
    ----------
    JAX documentation, "jax.random.choice" and "jax.lax.top_k".
    """

    id = "sorted-for-few"
    title = "Draw or select a few elements without sorting all"

    minimum_share = Limit(0.03, "share", "Sorts of a few thousand elements take less than this.")

    needs = (Need.WORK, Need.XLA_OPERATIONS, Need.PROGRAMS)

    noun = "operation"

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The sorts, and what is computed for them."""
        faster: dict[int, FasterOperation] = {}
        for found in partly_used_sorts(signals):
            expected, best, worst = _SAMPLED if found.is_random else _SELECTED
            for operation in (found.operation, *found.beside):
                now = mean_ns(signals, operation)
                faster[operation.op] = FasterOperation(
                    operation, expected * now, best * now, worst * now
                )
        return list(faster.values())

    def advice(self, signals: Signals) -> tuple[str, ...]:
        """Random numbers are drawn, others are selected."""
        is_random = any(found.is_random for found in partly_used_sorts(signals))
        return ("draw-indices",) if is_random else ("select-the-largest",)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The costliest sort."""
        worst = max(partly_used_sorts(signals), key=lambda one: total_ns(signals, [one.operation]))
        line = signals.trace.text(int(signals.trace.hlo.source_line[worst.operation.op]))
        what = "random numbers" if worst.is_random else "elements"
        few = f"{worst.used:,} of {worst.sorted:,}"
        return f"{few}{f' ({line})' if line else ''}", (
            f"{cost} goes into sorting {worst.sorted:,} {what}, of which {worst.used:,} are used."
        )
