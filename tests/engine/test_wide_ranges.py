from __future__ import annotations

from collections.abc import Iterable

import pytest

from tb_perfadvisor.engine.savings import mark_wide_ranges
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Basis, Finding, Saving
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.trace.intervals import single


class Any(Rule):
    id, title, category = "any", "Do", "steps"

    def check(self, signals: Signals) -> Iterable[Finding]:
        return ()


@pytest.mark.parametrize(
    ("low", "expected", "high", "basis"),
    [
        (0, 20, 80, "simulated"),  # as wide as four times 20
        (0, 20, 81, "heuristic"),
        (10, 20, 90, "simulated"),
        (0, 0, 1, "heuristic"),
        (0, 0, 0, "simulated"),
    ],
)
def test_more_than_four_times_the_expected_saving_is_a_heuristic(
    low: int, expected: int, high: int, basis: Basis
) -> None:
    saving = Saving(low, expected, high, single(0, 100), "simulated")
    ((_, finding),) = mark_wide_ranges([(Any(), Finding("", saving))])
    assert finding.saving is not None
    assert finding.saving.basis == basis
    # The range itself stays: the truth may lie at its end.
    assert (finding.saving.low_ns, finding.saving.high_ns) == (low, high)


def test_a_finding_without_an_estimate_stays_as_it_is() -> None:
    found = [(Any(), Finding("", severity="low"))]
    assert mark_wide_ranges(found) == found
