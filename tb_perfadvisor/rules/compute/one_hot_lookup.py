"""TensorFlow's products that only look up rows."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.graph_operators import rows_of_observed
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.examined_operators import place_of_observed
from tb_perfadvisor.rules.finding import Column, Finding, Saving
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.trace.intervals import intersect, total_ns, union

_SAVED = (0.5, 0.85, 1.0)
"""The part of a product's time that goes: at least, as expected, and at most. A gather reads a row
where the product reads the table; the gradient becomes a sum of rows."""


class OneHotLookup(Rule):
    """A TensorFlow program multiplies by one-hot matrices to look rows up.

    What it finds
    -------------
    Products of a `tf.one_hot` matrix and a table, and their gradients, in the graphs of compiled
    functions that `perfadvisor run` looked at. The recording shows what they take.

    Why it matters
    --------------
    The product multiplies every row of the table by 0 or 1. A gather reads only the rows that are
    needed.

    How it is measured
    ------------------
    The time of these operators, and of sums over their results. Expected is 85 % of it, low a half,
    and high all.

    When to ignore
    --------------
    When the table is small.

    How to verify
    -------------
    A gather takes the place of the product.

    References:
    ----------
    TensorFlow API documentation, "tf.gather" and "tf.nn.embedding_lookup".
    """

    id = "one-hot-lookup"
    title = "Look rows up in the table by their index"
    category = "compute"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.CPU_PROGRAM, Need.EXAMINED_STEPS)

    minimum_share = Limit(0.05, "share", "A small table takes less than this either way.")
    smallest_table = Limit(
        256, "count", "A product with a smaller table takes about as long as a gather."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when such products take a good part of the steps."""
        examined = signals.trace.facts.examined
        found = examined.all_of("one-hot") if examined is not None else ()
        found = tuple(each for each in found if each.amount >= self.smallest_table)
        rows, events = rows_of_observed(signals.trace, found), signals.trace.events
        claims = intersect(
            signals.attribution.intervals[Cause.HOST_COMPUTE],
            union(events.start_ns[rows], events.end_ns[rows]),
        )
        spent_ns = total_ns(claims)
        if not found or self.is_minor(spent_ns, signals):
            return
        low, expected, high = (int(part * spent_ns) for part in _SAVED)
        largest = max(found, key=lambda each: each.amount)
        where = place_of_observed(largest)
        yield Finding(
            instance=f"a table of {largest.amount:,.0f} rows in {where}",
            summary=(
                f"{per_step(spent_ns, signals)} goes into products by one-hot matrices, which look"
                f" rows up in a table of {largest.amount:,.0f} rows ({where})."
            ),
            saving=Saving(low, expected, high, claims, "modeled"),
            evidence=(
                events_by_name(
                    "Products by one-hot matrices",
                    "Operator",
                    signals.trace,
                    rows,
                    ((Column("duration_ns", "Time", "ns"), events.duration_ns[rows]),),
                ),
            ),
            remedies=advise("looked-up-rows"),
        )
