from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.xla.gathered_for_part import GatheredForPart
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import xla_op
from tests.support.program_values import FIXED, MODULE, SLOW, drawn, program

OWN, ALL, PART = "bf16[512,16,128]{2,1,0}", "bf16[4096,16,128]{2,1,0}", "bf16[4096,2,128]{2,1,0}"
GATHER = f"%all-gather = {ALL} all-gather({OWN} %x), dimensions={{0}}"
PROGRAM = f"""
    %x = {OWN} parameter(0) // parts=8
    %device = u32[] partition-id()
    %zero = s32[] constant(0)
    %number = s32[] convert(u32[] %device)
    %two = s32[] constant(2)
    %first = s32[] multiply(s32[] %number, s32[] %two)
    {GATHER}
    %heads = {PART} dynamic-slice({ALL} %all-gather, s32[] %zero, s32[] %first, s32[] %zero)
    %result = {PART} tanh({PART} %heads) // result
"""
EXCHANGED = program(
    f"""
    %x = {OWN} parameter(0) // parts=8
    %all-gather = {PART} all-to-all({OWN} %x) // result
    """,
    devices=8,
)
COLUMNS = {"category": "all-gather"}


def test_saves_what_the_other_parts_take() -> None:
    checked = check_rule(
        GatheredForPart,
        slow=drawn(SLOW, GATHER, program(PROGRAM, 8), **COLUMNS),
        fixed=drawn(FIXED, GATHER, EXCHANGED, **COLUMNS),
        saves=300_000,
        tolerance=0.2,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # Two of 16 heads are an eighth.
    assert finding.saving.expected_ns == pytest.approx(0.875 * 800_000, abs=2)
    assert "12.5 % of the bytes" in finding.summary
    assert any("its own part" in remedy.text for remedy in finding.remedies)


GRADIENTS, ONE, EACH = "f32[8,2048,1024]{2,1,0}", "f32[2048,1024]{1,0}", "f32[256,1024]{1,0}"
SUMMED = f"""
    %own = {ONE} parameter(0) // parts=8
    %zero = f32[] constant(0)
    %all-gather = {GRADIENTS} all-gather({ONE} %own), dimensions={{0}}
    %sum = {ONE} reduce({GRADIENTS} %all-gather, f32[] %zero), dimensions={{0}}
    %mean = {ONE} tanh({ONE} %sum) // result
"""
SUM_OF = f"%all-gather = {GRADIENTS} all-gather({ONE} %own), dimensions={{0}}"


def test_a_sum_over_devices_is_added_up_while_sending() -> None:
    (finding,) = find(GatheredForPart, drawn(SLOW, SUM_OF, program(SUMMED, 8), **COLUMNS)) or ()
    # An all-reduce sends and gathers an eighth each.
    assert "25.0 % of the bytes" in finding.summary
    split = (
        SUMMED.replace(" // result", "")
        + f"""
    %device = u32[] partition-id()
    %part = {EACH} dynamic-slice({ONE} %mean, u32[] %device, f32[] %zero) // result
    """
    )
    (finding,) = find(GatheredForPart, drawn(SLOW, SUM_OF, program(split, 8), **COLUMNS)) or ()
    assert "12.5 % of the bytes" in finding.summary
    # Of two devices, an all-reduce sends as much as an all-gather.
    pair = SUMMED.replace("[8,", "[2,")
    assert find(GatheredForPart, drawn(SLOW, SUM_OF, program(pair, 2), **COLUMNS)) == ()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Something else uses the whole array.
        ("// result", f"// result\n    %kept = f32[] reduce({ALL} %all-gather) // result"),
        # The same part on each device.
        ("s32[] %first", "s32[] %two"),
    ],
)
def test_what_each_device_uses_whole_stays(before: str, after: str) -> None:
    text = PROGRAM.replace(before, after)
    assert text != PROGRAM
    assert find(GatheredForPart, drawn(SLOW, GATHER, program(text, 8), **COLUMNS)) == ()


def test_a_sum_over_another_dimension_needs_all() -> None:
    text = SUMMED.replace(f"%sum = {ONE} reduce", "%sum = f32[8,2048]{1,0} reduce")
    assert find(GatheredForPart, drawn(SLOW, SUM_OF, program(text, 8), **COLUMNS)) == ()


def test_the_end_of_an_asynchronous_exchange_and_the_sum_shrink() -> None:
    """XLA puts exchanges that overlap with work into fusions, of which the last one waits."""
    text = SUMMED.replace("dimensions={0}\n    %sum", "dimensions={0} // in done\n    %sum", 1)
    assert text != SUMMED
    operations = {
        "s": (f"%done = {GRADIENTS} fusion({ONE} %own), kind=kCustom", "custom fusion"),
        "t": (f"%sum = {ONE} reduce({GRADIENTS} %done, f32[] %zero), dimensions={{0}}", "reduce"),
    }
    trace = draw(
        SLOW.replace("ssss", "sstt"),
        legend={
            letter: xla_op(of.partition(" = ")[0].lstrip("%"), of, module=MODULE, category=category)
            for letter, (of, category) in operations.items()
        },
        device="TPU v5 lite",
    )
    (finding,) = find(GatheredForPart, replace(trace, programs=(program(text, 8),)))
    assert finding.saving is not None
    # Of 200 us each, in two steps, a quarter remains; at best an eighth of the exchange.
    assert finding.saving.expected_ns == pytest.approx(2 * 2 * 150_000, rel=0.001)
    assert finding.saving.high_ns == pytest.approx(2 * (175_000 + 200_000), rel=0.001)
    assert finding.saving.low_ns == pytest.approx(2 * 75_000, rel=0.001)
