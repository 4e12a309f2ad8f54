from __future__ import annotations

from collections.abc import Iterable

import pytest

from tb_perfadvisor.engine.analysis import CombinedSaving
from tb_perfadvisor.engine.ranking import rank
from tb_perfadvisor.engine.savings import estimated
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import draw, ms, run_of
from tb_perfadvisor.trace.intervals import single

TRACE = """
    cell 1ms
    step   |..........|..........|
    main   |o'........|o'........|
    gpu 7  |KKKKKK....|KKKKKK....|
    gpu 13 |......NNNN|......NNNN|
"""


class Any(Rule):
    id, title, category = "any", "Do", "communication"

    def check(self, signals: Signals) -> Iterable[Finding]:
        return ()


def test_an_unknown_saving_is_none_and_its_finding_is_shown() -> None:
    signals = Signals(run_of(draw(TRACE)))
    saving = Saving(0, 0, ms(8), single(ms(6), ms(14)), "heuristic", is_unknown=True)
    found = estimated([(Any(), Finding("", saving))], signals)
    ranked, combined = rank(found, ms(20))
    # 8 of 20 ms would be high; without a price it is one degree less.
    assert [(entry.finding.saving, entry.severity) for entry in ranked] == [(None, "medium")]
    assert [entry.finding.bounds for entry in ranked] == [saving]
    # Nothing is expected of it, but the combined high end is not zero.
    assert combined == CombinedSaving(0, 0, ms(8))


@pytest.mark.parametrize(("unpriced_ms", "is_priced"), [(0, True), (4, True), (5, False)])
def test_a_saving_of_which_more_than_half_is_unknown_has_no_price(
    unpriced_ms: int, is_priced: bool
) -> None:
    signals = Signals(run_of(draw(TRACE)))
    claims = single(ms(6), ms(14))
    saving = Saving(0, ms(2), ms(8), claims, "heuristic", unpriced_ns=ms(unpriced_ms))
    ((_, finding),) = estimated([(Any(), Finding("", saving))], signals)
    assert finding.saving == (saving if is_priced else None)
    assert finding.bounds == (None if is_priced else saving)


@pytest.mark.parametrize(("low_ms", "leads"), [(1, True), (0, False)])
def test_a_sure_saving_leads_before_one_that_nothing_tells(low_ms: int, leads: bool) -> None:
    signals = Signals(run_of(draw(TRACE)))
    unknown = Saving(0, 0, ms(8), single(ms(6), ms(14)), "heuristic", is_unknown=True)
    sure = Saving(ms(low_ms), ms(3), ms(4), single(ms(14), ms(20)), "modeled")
    found = estimated([(Any(), Finding("a", unknown)), (Any(), Finding("b", sure))], signals)
    ranked, _ = rank(found, ms(20))
    # 3 of 20 ms is high, and less than the middle of 0 and 8 ms. Without a low end, it is medium.
    assert [entry.finding.summary for entry in ranked] == (["b", "a"] if leads else ["a", "b"])
