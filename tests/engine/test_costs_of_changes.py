"""Changes that may make the steps longer: their low end may be negative."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from tb_perfadvisor.advice import advise
from tb_perfadvisor.engine.analysis import CombinedSaving
from tb_perfadvisor.engine.headline import headline
from tb_perfadvisor.engine.ranking import rank
from tb_perfadvisor.engine.savings import estimated, with_costs
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of
from tb_perfadvisor.trace.intervals import single

# Two steps of 10 ms on the CPU, of which an operator computes for 2.
ON_CPU = """
    cell 1ms
    step   |..........|..........|
    main   |oopppppppp|oopppppppp|
"""
# In each step, the device idles for 3 ms while Python runs.
ON_DEVICE = """
    cell 1ms
    step   |..........|..........|
    main   |pppo......|pppo......|
    gpu 7  |....KKKKKK|....KKKKKK|
"""


class Compile(Rule):
    id, title, category = "any", "Do", "launch"

    def check(self, signals: Signals) -> Iterable[Finding]:
        return ()


def signals(text: str) -> Signals:
    return Signals(run_of(draw(text, framework="pytorch")))


def advice(low_ms: int, *changes: str, end_ms: int = 12) -> Finding:
    """It saves 4 ms of 12, in a program without any known parts."""
    saving = Saving(ms(low_ms), ms(4), ms(8), single(0, ms(end_ms)), "modeled")
    remedies = tuple(remedy for remedy in advise(*changes) if not remedy.needs)
    return Finding("", saving, remedies=remedies)


def lows_ms(text: str, finding: Finding) -> tuple[float, float]:
    ((_, changed),) = with_costs([(Compile(), finding)], signals(text))
    assert changed.saving is not None
    return changed.saving.low_ns / ms(1), changed.saving.may_cost_ns / ms(1)


def test_compiling_may_cost_what_is_compiled() -> None:
    assert lows_ms(ON_CPU, advice(1, "compile")) == (1 - 12, 12)
    # At most the 2 x 8 ms in which no operator computes for long.
    assert lows_ms(ON_CPU, advice(1, "compile", end_ms=19)) == (1 - 16, 16)


def test_only_the_change_that_the_saving_is_about_counts() -> None:
    assert lows_ms(ON_CPU, advice(1, "fused-operators", "compile")) == (1, 0)


def test_with_a_device_compiling_costs_only_the_host() -> None:
    # Per step 3 ms of Python and 0.27 ms of a launch; then the launched work is queued, and runs.
    assert lows_ms(ON_DEVICE, advice(1, "compile")) == (1 - 2 * 3.27, 2 * 3.27)
    assert lows_ms(ON_DEVICE, advice(1, "compile", end_ms=5)) == (1 - 5, 5)  # no more than that


def with_shapes(*sizes: int, launches: bool) -> Signals:
    """A step for each size, in which a product runs for 6 ms, after 4 ms."""
    builder = TraceBuilder()
    for number, size in enumerate(sizes):
        at = ms(10) * number
        builder.step(number, at, at + ms(10))
        shapes = [[size, 512], [512, 512]]
        builder.operator(
            "aten::mm", at + ms(4), at + ms(10), shapes=shapes, dtypes=["float"] * 2,
            launches=launches,
        )  # fmt: skip
        if launches:
            builder.kernel("gemm", at + ms(4), at + ms(10))
    return Signals(run_of(builder.build()))


def test_equal_shapes_and_no_decisions_cost_a_program_with_a_device_nothing() -> None:
    found = [(Compile(), advice(1, "compile"))]
    assert with_costs(found, with_shapes(128, 128, 128, launches=True)) == found
    assert with_costs(found, with_shapes(128, 128, 128, launches=False)) != found


@pytest.mark.parametrize("launches", [False, True])
def test_what_compiles_again_for_each_step_has_no_price(launches: bool) -> None:
    changing = with_shapes(128, 97, 64, 33, launches=launches)
    ((_, finding),) = estimated([(Compile(), advice(1, "compile"))], changing)
    assert finding.saving is None
    assert finding.bounds is not None
    assert "shapes change from step to step" in finding.summary
    ((_, other),) = estimated([(Compile(), advice(1, "fused-operators"))], changing)
    assert other.saving is not None
    constant = with_shapes(128, 128, 128, 128, launches=launches)
    ((_, finding),) = estimated([(Compile(), advice(1, "compile"))], constant)
    assert finding.saving is not None


def costing(saving: Saving, cost_ns: int) -> Finding:
    return Finding("", replace(saving, low_ns=saving.low_ns - cost_ns, may_cost_ns=cost_ns))


def test_a_low_end_is_below_zero_only_by_what_the_change_may_cost() -> None:
    claims = single(0, 100)
    assert Saving(-30, 40, 60, claims, "modeled").low_ns == 0
    assert Saving(-30, 40, 60, claims, "modeled", may_cost_ns=20).low_ns == -20
    assert Saving(-10, 40, 60, claims, "modeled", may_cost_ns=20).low_ns == -10


def test_what_a_change_may_cost_counts_once() -> None:
    # Together they save 15 + 15 at least, 50 + 30 probably, and cost 50 at most.
    first = costing(Saving(15, 50, 60, single(0, 100), "modeled"), 50)
    second = costing(Saving(15, 30, 60, single(100, 200), "modeled"), 20)
    ranked, combined = rank([(Compile(), first), (Compile(), second)], window_ns=1000)
    assert combined == CombinedSaving(30 - 50, 80, 120)
    # Order, severity and what each adds are of what is expected.
    assert [entry.marginal_ns for entry in ranked] == [50, 30]
    assert [entry.severity for entry in ranked] == ["medium", "medium"]


def test_the_headline_says_what_it_may_cost() -> None:
    found = signals(ON_DEVICE)
    finding = costing(Saving(ms(1), ms(4), ms(6), single(0, ms(6)), "modeled"), ms(3))
    ranked, _ = rank([(Compile(), finding)], ms(20))
    assert headline(found, ranked, 0).endswith(
        ": up to −3.00 ms of 10.0, probably −2.00, at worst +1.00"
    )
