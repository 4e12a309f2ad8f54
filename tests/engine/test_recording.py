from __future__ import annotations

from collections.abc import Iterable

import pytest

from tb_perfadvisor.engine.ranking import rank
from tb_perfadvisor.engine.savings import estimated, saved_together
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, run_of, us
from tb_perfadvisor.testing.builder import ms
from tb_perfadvisor.trace.intervals import EMPTY, join, single
from tb_perfadvisor.whatif import Async, Remove

OPERATORS, RECORDING_NS = 50, 600
"""Recording an operator costs 600 ns (`signals/recording/profiler_overhead.py`)."""


class Any(Rule):
    id, title, category = "any", "Do", "launch"

    def check(self, signals: Signals) -> Iterable[Finding]:
        return ()


def steps(*, pauses: bool = False) -> Signals:
    """Two steps: 50 operators of 10 us that launch nothing, and a kernel of 500 us.

    With pauses, each operator calls another one 6 us after its start. A dispatch takes 0.5 us, so
    recording takes 5.5.
    """
    builder = TraceBuilder()
    for step in range(2):
        begin = step * ms(1)
        builder.step(step, begin, begin + ms(1))
        for index in range(OPERATORS):
            at = begin + us(10 * index)
            builder.operator("aten::reshape", at, at + us(10), launches=False)
            if pauses:
                builder.operator("aten::view", at + us(6), at + us(10), launches=False)
        builder.launch(begin + us(500), begin + us(501), key=f"step {step}")
        builder.kernel("sgemm", begin + us(501), begin + us(1000), launched_by=f"step {step}")
    return Signals(run_of(builder.build()))


CLAIMS = join(single(0, us(500)), single(ms(1), ms(1) + us(500)))


def final(saving: Saving, facts: Signals) -> Saving:
    ((_, finding),) = estimated([(Any(), Finding("", saving))], facts)
    assert finding.saving is not None
    return finding.saving


def test_the_cost_of_recording_is_subtracted_once() -> None:
    saving = Saving(us(1000), us(1000), us(1000), CLAIMS, "measured", (Remove(CLAIMS),))
    found = final(saving, steps())
    # 100 operators of 10 us, whose recording costs 60 us.
    cost_ns = 2 * OPERATORS * RECORDING_NS
    assert cost_ns == us(60)
    assert (found.expected_ns, found.high_ns) == (us(1000) - cost_ns, us(1000))
    assert (found.low_ns, found.recording_ns) == (found.expected_ns, cost_ns)
    assert found.basis == "simulated"


def test_a_replay_without_the_pauses_has_left_it_out() -> None:
    facts = steps(pauses=True)
    saving = Saving(0, us(1000), us(1000), CLAIMS, "measured", (Remove(CLAIMS, is_launching=True),))
    found = final(saving, facts)
    # The 5.5 us before each inner operator are visible. The estimate from the number of operators
    # is lower, so nothing is subtracted again.
    assert found.expected_ns == pytest.approx(us(1000) - 2 * OPERATORS * us(5.5), rel=0.02)
    assert found.recording_ns == 0


def test_only_removed_host_code_includes_recording() -> None:
    facts = steps()
    for fix in ((), (Async(facts.synchronizations.row),)):
        saving = Saving(0, us(900), us(1000), CLAIMS, "heuristic", fix)
        assert final(saving, facts).recording_ns == 0
    busy = single(us(501), us(1000))
    assert (
        final(Saving(0, us(1), us(2), busy, "measured", (Remove(busy),)), facts).recording_ns == 0
    )


def test_no_more_stays_unproven_than_is_expected() -> None:
    # Of 100 us, a replay does not show 80. Recording costs 60, so 40 us are expected.
    parts = Saving(0, us(100), us(1000), CLAIMS, "simulated", (Remove(CLAIMS),), unproven_ns=us(80))
    found = final(parts, steps())
    assert (found.recording_ns, found.expected_ns) == (us(60), us(40))
    assert found.unproven_ns == us(40)


def test_marginal_savings_do_not_include_it_either() -> None:
    facts = steps()
    first, second = single(0, us(500)), single(ms(1), ms(1) + us(500))
    found = estimated(
        [
            (Any(), Finding("", Saving(0, us(500), us(500), part, "measured", (Remove(part),))))
            for part in (first, second)
        ],
        facts,
    )
    ranked, combined = rank(found, facts.attribution.window_ns, saved_together(facts))
    assert [entry.marginal_ns for entry in ranked] == [us(470), us(470)]
    assert combined is not None
    assert combined.expected_ns == us(940)


def test_without_an_estimate_there_is_nothing_to_subtract() -> None:
    found = [(Any(), Finding("", severity="low"))]
    assert estimated(found, steps()) == found
    nothing = Saving(0, 0, 0, EMPTY, "measured", (Remove(EMPTY),))
    assert final(nothing, steps()).expected_ns == 0
