"""Products of which gathers read a few columns."""

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
from tb_perfadvisor.units import format_share

_SAVED = (0.5, 0.85, 1.0)
"""The part of the time for what is not read that goes: at least, as expected, and at most. Gathered
vectors are read for each row again, where a product reads the table once."""


class GatheredScores(Rule):
    """A TensorFlow program scores all items and then gathers a few of the scores.

    What it finds
    -------------
    Products of which only `tf.gather` and `tf.gather_nd` read a tenth or less, in the graphs of
    compiled functions that `perfadvisor run` looked at. Their gradients and the update of the table
    count as well. The recording shows what they take.

    Why it matters
    --------------
    The product scores every item, its gradient is mostly zeros, and the update goes over the whole
    table. Gather the items' vectors first, and only these are multiplied, and get gradients.

    How it is measured
    ------------------
    The time of these operators for the part that is not read. Expected is 85 % of it, low a half,
    and high all.

    When to ignore
    --------------
    When nearly all items are gathered for one row of the batch or another, and rows share the
    product.

    How to verify
    -------------
    The gather comes before the product, whose result has as many columns as are needed.

    References:
    ----------
    TensorFlow API documentation, "tf.gather" and "tf.nn.sampled_softmax_loss".
    """

    id = "gathered-scores"
    title = "Gather before multiplying"
    category = "compute"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.CPU_PROGRAM, Need.EXAMINED_STEPS)

    minimum_share = Limit(0.05, "share", "A small table takes less than this either way.")
    most_read = Limit(
        0.1,
        "share",
        "A product reads the table once for all rows: one of a few columns for each row is slower"
        " per score.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when such products take a good part of the steps."""
        examined = signals.trace.facts.examined
        found = examined.all_of("gathered product") if examined is not None else ()
        found = tuple(each for each in found if each.amount <= self.most_read)
        rows, events = rows_of_observed(signals.trace, found), signals.trace.events
        claims = intersect(
            signals.attribution.intervals[Cause.HOST_COMPUTE],
            union(events.start_ns[rows], events.end_ns[rows]),
        )
        if not found:
            return
        spent_ns = total_ns(claims)
        read = max(each.amount for each in found)
        low, expected, high = (int(part * (1 - read) * spent_ns) for part in _SAVED)
        if self.is_minor(expected, signals):
            return
        product, where = found[0], place_of_observed(found[0])
        yield Finding(
            instance=f"{product.shapes} in {where}",
            summary=(
                f"{per_step(spent_ns, signals)} goes into scores of {product.shapes}, of which"
                f" {where} reads {format_share(product.amount)}, their gradients, and the update of"
                " the table."
            ),
            saving=Saving(low, expected, high, claims, "modeled"),
            evidence=(
                events_by_name(
                    "Operators on all scores",
                    "Operator",
                    signals.trace,
                    rows,
                    ((Column("duration_ns", "Time", "ns"), events.duration_ns[rows]),),
                ),
            ),
            remedies=advise("gathered-first"),
        )
