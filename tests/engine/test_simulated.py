from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from tb_perfadvisor.engine.savings import saved_together, simulate, simulation_notes
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Basis, Finding, Saving
from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.testing import TraceBuilder, draw, run_of
from tb_perfadvisor.testing.builder import ms
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import single
from tb_perfadvisor.whatif import Fix, Remove, Shorten

# The host is held up by 4 cells of fetching and by the kernel of 5.
TRACE = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoSSSSS|DDDDoSSSSS|
    gpu 7  |.....KKKKK|.....KKKKK|
"""


class Any(Rule):
    id, title, category = "any", "Do", "steps"

    def check(self, signals: Signals) -> Iterable[Finding]:
        return ()


# The loader works in the training process: nothing else paces the fetches.
FETCH = host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", EventKind.INPUT_WAIT)


def signals(text: str = TRACE) -> Signals:
    return Signals(run_of(draw(text, legend={"D": FETCH})))


def simulated_saving(saving: Saving, facts: Signals) -> Saving:
    ((_, finding),) = simulate([(Any(), Finding("", saving))], facts)
    assert finding.saving is not None
    return finding.saving


def fetching(facts: Signals) -> Remove:
    return Remove(facts.input_waits)


def faster(facts: Signals, to_ns: int) -> Shorten:
    rows = facts.trace.rows(EventKind.KERNEL)
    return Shorten(rows, np.full(len(rows), to_ns))


def test_a_measured_saving_becomes_simulated() -> None:
    facts = signals()
    claims = facts.attribution.intervals[Cause.INPUT]
    saving = Saving(1_000_000, 4_000_000, 8_000_000, claims, "measured", (fetching(facts),))
    found = simulated_saving(saving, facts)
    # Both fetches of 4 ms.
    assert (found.low_ns, found.expected_ns, found.high_ns) == (1_000_000, 8_000_000, 8_000_000)
    assert (found.basis, found.fix) == ("simulated", saving.fix)


def test_simulation_shows_how_much_of_a_modeled_saving_reaches_the_step() -> None:
    # The host waits for the kernel until 5 ms after the launch: 2 ms less, twice.
    facts = signals()
    claims = single(0, 20_000_000)
    fix = faster(facts, 3_000_000)
    saving = Saving(5_000_000, 10_000_000, 20_000_000, claims, "modeled", (fix,))
    found = simulated_saving(saving, facts)
    assert (found.low_ns, found.expected_ns, found.high_ns) == (4_000_000, 4_000_000, 20_000_000)
    assert found.basis == "modeled"


@pytest.mark.parametrize("basis", ["measured", "heuristic"])
def test_a_saving_without_a_fix_is_unchanged(basis: Basis) -> None:
    saving = Saving(1, 2, 3, single(0, 10), basis)
    assert simulated_saving(saving, signals()) == saving


def test_no_more_is_expected_than_the_high_estimate() -> None:
    facts = signals()
    saving = Saving(0, 1_000_000, 2_000_000, single(0, 3_000_000), "measured", (fetching(facts),))
    found = simulated_saving(saving, facts)
    # The replay saves 8 ms. That is limited by the claimed 3 ms, and by 2 ms of launching that the
    # host may do ahead.
    assert (found.low_ns, found.expected_ns, found.high_ns) == (0, 2_000_000, 5_000_000)


def test_a_profile_that_cannot_be_simulated_keeps_the_estimate() -> None:
    facts = signals("""
        cell 1ms
        step   |..........|..........|
        main   |DDDDDDOOOO|DDDDDDOOOO|
    """)
    saving = Saving(0, 1, 2, single(0, 10), "measured", (fetching(facts),))
    found = simulated_saving(saving, facts)
    assert (found.expected_ns, found.basis, found.fix) == (1, "measured", ())


def test_an_unrecorded_host_may_wait_for_the_device() -> None:
    # The host is not recorded while the kernel runs, so a faster kernel is not simulated.
    facts = signals(TRACE.replace("SSSSS", "....."))
    saving = Saving(0, 1, 2, single(0, 10), "modeled", (faster(facts, 1_000_000),))
    assert simulated_saving(saving, facts).fix == ()


def test_fixes_are_simulated_together() -> None:
    facts = signals()
    together = saved_together(facts)
    fixes: list[Fix] = [fetching(facts), faster(facts, 3_000_000)]
    assert [together(fixes[:1]), together(fixes[1:]), together(fixes)] == [
        8_000_000,
        4_000_000,
        12_000_000,
    ]
    cpu = signals("""
        cell 1ms
        step   |....|....|
        main   |DDOO|DDOO|
    """)
    assert saved_together(cpu)([fetching(cpu)]) == 0


def notes(facts: Signals) -> list[str]:
    fix = Remove(facts.input_waits)
    found = Finding("", Saving(0, 1, 2, single(0, 10), "measured", (fix,)))
    return [note.message for note in simulation_notes([(Any(), found)], facts)]


def test_a_note_says_why_savings_are_not_simulated() -> None:
    # The call continues for 6 ms after the kernel has ended.
    (message,) = notes(
        signals("""
        cell 1ms
        step   |..........|..........|
        main   |oSSSSSSSSS|oSSSSSSSSS|
        gpu 7  |KKK.......|KKK.......|
    """)
    )
    assert message.startswith(
        "Savings come from the recorded durations, not from a replay of the steps, because calls "
        "wait for what the profile does not show."
    )


def test_no_note_if_savings_are_simulated_or_never_can_be() -> None:
    assert notes(signals()) == []
    assert notes(signals("cell 1ms\nstep |....|\nmain |DDOO|")) == []
    facts = signals()
    assert simulation_notes([(Any(), Finding("", severity="low"))], facts) == ()


def recorded_slowly() -> Signals:
    """Two steps of 40 operators whose recording takes 0.6 of their 1 ms.

    Without it the host launches every 0.4 ms, and kernels of 0.6 ms set the pace.
    """
    builder = TraceBuilder().device("Tesla V100-SXM2-16GB")
    for step in range(2):
        builder.step(step, ms(40 * step), ms(40 * (step + 1)))
        for i in range(40 * step, 40 * (step + 1)):
            builder.operator("aten::conv2d", ms(i), ms(i + 1), launches=False)
            builder.operator("aten::convolution", ms(i + 0.5), ms(i + 0.9))
            builder.kernel("volta_sgemm_128x64_nn", ms(i + 0.9), ms(i + 1.5))
    return Signals(run_of(builder.build()))


def test_profiler_overhead_hides_how_far_the_host_could_run_ahead() -> None:
    facts = recorded_slowly()
    fix = faster(facts, ms(0.3))
    modeled = Saving(0, ms(24), ms(48), single(0, ms(80)), "modeled", (fix,))
    found = simulated_saving(modeled, facts)
    # 80 kernels of 0.6 ms set the pace, and with 0.3 ms the host does, with 0.4 ms: of 48 ms some
    # 32 remain. The model says 24 ms, if a host without a profiler is faster still: halfway.
    assert found.low_ns == 0
    assert found.expected_ns == pytest.approx(ms(20), rel=0.02)
    assert found.unproven_ns == pytest.approx(ms(4), rel=0.1)
    # For a measured saving there is no unproven half.
    measured = Saving(0, ms(24), ms(48), single(0, ms(80)), "measured", (fix,))
    assert simulated_saving(measured, facts).expected_ns == pytest.approx(ms(16), rel=0.02)


def test_profiler_overhead_is_not_saved_by_launching_less() -> None:
    facts = recorded_slowly()
    host = single(0, ms(80))
    whole = Saving(0, ms(40), ms(80), host, "measured", (Remove(host),))
    launching = Saving(0, ms(40), ms(80), host, "measured", (Remove(host, is_launching=True),))
    # The device needs 80 x 0.6 ms of the 80 ms recorded, with or without a profiler.
    assert simulated_saving(whole, facts).expected_ns == pytest.approx(ms(32), rel=0.02)
    assert simulated_saving(launching, facts).expected_ns == pytest.approx(0, abs=ms(1))
