from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.engine.ranking import rank
from tb_perfadvisor.engine.savings.estimates import estimated
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
    assert [(entry.finding.saving, entry.severity) for entry in ranked] == [(None, "low")]
    assert combined is None


def test_what_is_known_of_a_saving_stays() -> None:
    signals = Signals(run_of(draw(TRACE)))
    saving = Saving(0, ms(2), ms(8), single(ms(6), ms(14)), "heuristic")
    ((_, finding),) = estimated([(Any(), Finding("", saving))], signals)
    assert finding.saving == saving
