"""What several findings save together, without counting the same time twice.

A finding adds to those before it: if its fix was simulated, what simulating all fixes so far saves
beyond the fixes before. Otherwise it adds its saving times the share of the time it is taken from
that no finding before has taken. The combined high end is the most that all findings, those without
a price included, can save together: no finding more than its own high end, and no time twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from tb_perfadvisor.engine.analysis import CombinedSaving
from tb_perfadvisor.rules.finding import Saving
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, join, minus, total_ns
from tb_perfadvisor.whatif import Fix


class Priced(Protocol):
    """What may save time: a finding, or what is stored of one."""

    @property
    def saving(self) -> Saving | None:
        """None without a price."""

    @property
    def bounds(self) -> Saving | None:
        """What it may save, if it has no price."""


def limits_of(finding: Priced) -> Saving | None:
    """What a finding may save, whether it has a price or not."""
    return finding.bounds if finding.saving is None else finding.saving


class Combination:
    """Adds up savings one by one without counting any time twice."""

    def __init__(
        self,
        window_ns: int,
        saved_ns: Callable[[Sequence[Fix]], int] | None,
        most_ns: Callable[[Intervals], int],
    ) -> None:
        """Begin with nothing.

        `saved_ns` simulates what fixes save together; None if no simulation exists. `most_ns` is
        the most that can be saved by findings that claim some intervals.
        """
        self._window_ns, self._saved_ns, self._most_ns = window_ns, saved_ns, most_ns
        self._taken: Intervals = EMPTY
        self._not_simulated: Intervals = EMPTY
        self._limits: list[Saving] = []
        self._fixes: list[Fix] = []
        self._saved_by_fixes = 0
        self._low = self._expected = self._may_cost = 0

    @property
    def combined(self) -> CombinedSaving:
        """What the findings so far save together."""
        high_ns = min(max(_most_together_ns(self._limits), self._expected), self._window_ns)
        return CombinedSaving(self._low - self._may_cost, self._expected, high_ns)

    def add(self, finding: Priced) -> int:
        """Add a finding and return what it adds to the expected total."""
        limits, saving = limits_of(finding), finding.saving
        if limits is not None:
            self._limits.append(limits)
        if saving is None:
            return 0
        # What a change may cost, it costs once, however many findings advise it.
        self._may_cost = max(self._may_cost, saving.may_cost_ns)
        saving = replace(saving, low_ns=saving.low_ns + saving.may_cost_ns, may_cost_ns=0)
        if saving.fix and self._saved_ns is not None:
            marginal = self._add_simulated(saving, self._saved_ns)
        else:
            fresh, whole = _untaken(saving, self._taken)
            # Round down, so that time claimed twice is never saved twice.
            marginal = saving.expected_ns * fresh // whole
            self._low += saving.low_ns * fresh // whole
            self._not_simulated = join(self._not_simulated, saving.expected_from)
        self._taken = join(self._taken, saving.expected_from)
        marginal = min(marginal, max(self._most_ns(self._taken) - self._expected, 0))
        self._expected += marginal
        self._low = min(self._low, self._expected)
        return marginal

    def _add_simulated(self, saving: Saving, saved_ns: Callable[[Sequence[Fix]], int]) -> int:
        self._fixes += saving.fix
        before = self._saved_by_fixes
        self._saved_by_fixes = max(saved_ns(self._fixes), before)
        # The simulation knows what the fixes add to each other. Subtract only the time that
        # findings without a simulated fix have taken.
        fresh, whole = _untaken(saving, self._not_simulated)
        realized_ns = int(saving.realized_share * (self._saved_by_fixes - before))
        # In the order in which the finding's own saving is computed: alone, it adds just that.
        most_ns = min(realized_ns - saving.elsewhere_ns, total_ns(saving.expected_from))
        marginal = max(most_ns - saving.recording_ns, 0) * fresh // whole
        unclaimed, _ = _untaken(saving, self._taken)
        marginal += saving.unproven_ns * unclaimed // whole
        marginal = min(marginal, self._window_ns - self._expected)
        self._low += min(saving.low_ns * fresh // whole, marginal)
        return marginal


def _untaken(saving: Saving, taken: Intervals) -> tuple[int, int]:
    """How much of the time that a saving is taken from is not taken yet, and all of it."""
    source = saving.expected_from
    return total_ns(minus(source, taken)), max(total_ns(source), 1)


def _most_together_ns(limits: Sequence[Saving]) -> int:
    """The most that several changes save together.

    That is no more than the sum of their high ends, and no more than the time that they claim. This
    holds for any split of them in two, the sum for one part and the claimed time for the other.
    Those that may save nearly all of the time that they claim come first.
    """

    def inside_ns(saving: Saving) -> int:
        return saving.high_ns - saving.outside_claims_ns

    most_ns, claimed = 0, EMPTY
    for saving in sorted(limits, key=lambda each: -inside_ns(each) / max(each.claimed_ns, 1)):
        claimed = join(claimed, saving.claims)
        most_ns = min(most_ns + inside_ns(saving), total_ns(claimed))
    # Freed cores speed up the rest of the step only once, however many changes free them.
    return most_ns + max((saving.outside_claims_ns for saving in limits), default=0)
