"""What is the same for all examples of a batch is needed once."""

from __future__ import annotations

import pytest

from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.xla.excess_work import ExcessWork
from tb_perfadvisor.signals.program.same_along import same_sizes
from tb_perfadvisor.testing import find
from tb_perfadvisor.trace.program import Program
from tests.support.program_values import SLOW, drawn, program, with_operand

ONE, EACH = "f32[96,96]{1,0}", "f32[512,96,96]{2,1,0}"
FUSION = f"%fusion = {EACH} fusion({ONE} %noise, {ONE} %model), kind=kOutput"
SAME = f"""
    %noise = {ONE} parameter(0)
    %model = {ONE} parameter(1)
    %spread = {EACH} broadcast({ONE} %noise), dimensions={{1,2}} // in fusion
    %product = {EACH} dot({EACH} %spread, {ONE} %model), lhs_contracting_dims={{2}} // in fusion
    %sum = {EACH} add({EACH} %product, {EACH} %spread) // in fusion, result
"""


def repeated(text: str) -> tuple[Finding, ...]:
    return find(ExcessWork, drawn(SLOW, FUSION, program(text))) or ()


def test_the_same_product_for_each_example_is_needed_once() -> None:
    (finding,) = repeated(SAME)
    assert finding.saving is not None
    # 400 µs in each of two steps would be less than the microsecond that an operation takes.
    assert finding.saving.expected_ns == pytest.approx(2 * 399_000, rel=0.001)
    assert "Of 512 results along a dimension, all are the same." in finding.summary


def test_what_differs_between_examples_stays() -> None:
    spread = f"broadcast({ONE} %noise), dimensions={{1,2}}"
    assert repeated(SAME.replace(spread, "parameter(2)")) == ()


def sizes_of(found: Program) -> list[int]:
    """The sizes of the dimensions along which the last value of a program is the same."""
    return sorted(same_sizes(found)[-1])


BEGIN = """
    %begin = f32[4]{0} parameter(0)
    %spread = f32[8,4]{1,0} broadcast(f32[4] %begin), dimensions={1}
"""


@pytest.mark.parametrize(
    ("line", "sizes"),
    [
        ("%y = f32[4,8]{1,0} transpose(f32[8,4] %spread), dimensions={1,0}", [8]),
        ("%y = f32[8,2,2]{2,1,0} reshape(f32[8,4] %spread)", [8]),
        # Other elements come one after the other: 0 1 2 3 0 1 2 3.
        ("%y = f32[4,8]{1,0} reshape(f32[8,4] %spread)", []),
        ("%y = f32[4,8]{0,1} bitcast(f32[8,4]{1,0} %spread)", [8]),
        ("%y = f32[8]{0} reduce(f32[8,4] %spread, f32[] %zero), dimensions={1}", [8]),
        ("%y = f32[8,8]{1,0} broadcast(f32[8,4] %spread), dimensions={0}", []),
        ("%y = f32[8,4]{1,0} iota(), iota_dimension=0", []),
        ("%y = f32[8,4]{1,0} sort(f32[8,4] %spread), dimensions={0}", []),
    ],
)  # fmt: skip
def test_a_dimension_is_followed(line: str, sizes: list[int]) -> None:
    zero = "%zero = f32[] constant(0)\n"
    assert sizes_of(program(BEGIN + zero + line)) == sizes


def test_a_loop_keeps_what_each_trip_keeps() -> None:
    given = "%given = f32[8,4]{1,0} parameter(1)"
    state = "%state = f32[8,4]{1,0} add(f32[8,4] %state, f32[8,4] %spread) // runs=9"
    loop = program(BEGIN + given + "\n" + state)
    assert sizes_of(with_operand(loop, 3, 1)) == [8]
    # Where the loop begins with other rows, or it is not known with what.
    assert sizes_of(with_operand(loop, 3, 2)) == []
    assert sizes_of(loop) == []


# Each of eight devices gathers all rows to read those at the borders of its own.
FIELD, OWN = "f32[4096,2048]{1,0}", "f32[512,2048]{1,0}"
GATHER = f"%field = {FIELD} all-gather({OWN} %own), dimensions={{0}}"
BORDERS = f"""
    %own = {OWN} parameter(0) // parts=8
    {GATHER}
    %above = f32[544,2048]{{1,0}} dynamic-slice({FIELD} %field, s32[] %at) // in read
    %sum = f32[544,2048]{{1,0}} tanh(f32[544,2048] %above) // in read, result
"""


def test_gathering_all_to_read_a_border() -> None:
    text = "%at = s32[] partition-id()" + BORDERS
    (finding,) = find(ExcessWork, drawn(SLOW, GATHER, program(text, devices=8))) or ()
    assert finding.saving is not None
    # 32 of the 3,584 rows of the other devices are read: 32 / 3584 of the time remains.
    assert finding.saving.expected_ns == pytest.approx(2 * 400_000 * (1 - 32 / 3584), rel=0.001)
    assert "ppermute" in (finding.remedies[0].snippet or "")
    # A device that reads half of the rows has to have them, and so has one that reads by content.
    for read in (
        text.replace("544", "2432"),
        text + f"%all = {FIELD} tanh({FIELD} %field) // result",
    ):
        assert find(ExcessWork, drawn(SLOW, GATHER, program(read, devices=8))) == ()
