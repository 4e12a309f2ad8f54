from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.xla.repeated_updates import RepeatedUpdates
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import xla_op
from tests.support.program_values import FIXED, MODULE, SLOW, drawn, program

W = "f32[4096,4096]{1,0}"
FUSION = f"%fusion = ({W}, {W}) fusion({W} %weights, {W} %moments, {W} %all-reduce), kind=kLoop"
REDUCE = f"%all-reduce = {W} all-reduce({W} %gradient)"
PROGRAM = f"""
    %weights = {W} parameter(0) // aliased
    %moments = {W} parameter(1) // aliased
    %gradient = {W} parameter(2) // parts=4
    {REDUCE}
    %moved = {W} add({W} %moments, {W} %all-reduce) // in fusion, result
    %new = {W} subtract({W} %weights, {W} %moved) // in fusion, result
"""
SPLIT = program(PROGRAM.replace("// aliased", "// aliased, parts=4"), devices=4)


def test_saves_what_the_other_devices_update_too() -> None:
    checked = check_rule(
        RepeatedUpdates,
        slow=drawn(SLOW, FUSION, program(PROGRAM, devices=4)),
        fixed=drawn(FIXED, FUSION, SPLIT),
        saves=300_000,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # Each of four devices would do a quarter of 2 x 400 µs.
    assert finding.saving.high_ns == pytest.approx(600_000, abs=2)
    assert "128 MiB of parameters and state" in finding.summary


def test_gathering_what_was_updated_costs_as_much_as_half_of_the_reduction() -> None:
    slow = """
        cell 100us
        step  |..........|..........|
        main  |LSSSSSSSSS|LSSSSSSSSS|
        tpu 0 |XXXXrrssss|XXXXrrssss|
    """
    legend = {
        "s": xla_op("fusion", FUSION, module=MODULE),
        "r": xla_op("all-reduce", REDUCE, module=MODULE, category="all-reduce"),
    }
    trace = draw(slow, legend=legend, device="TPU v5 lite")
    (finding,) = find(RepeatedUpdates, replace(trace, programs=(program(PROGRAM, 4),))) or ()
    assert finding.saving is not None
    # 3/4 of 2 x 400 µs, less half or all of 2 x 200 µs.
    assert finding.saving.expected_ns == pytest.approx(400_000, abs=2)
    assert finding.saving.low_ns == pytest.approx(200_000, abs=2)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Gradients of each device's own samples.
        (f"{W} %moments, {W} %all-reduce", f"{W} %moments, {W} %gradient"),
        # Nothing is updated in place.
        ("// aliased", ""),
    ],
)
def test_other_updates_stay(before: str, after: str) -> None:
    text = PROGRAM.replace(before, after)
    assert text != PROGRAM
    assert find(RepeatedUpdates, drawn(SLOW, FUSION, program(text, devices=4))) == ()


def test_one_device_updates_alone() -> None:
    assert find(RepeatedUpdates, drawn(SLOW, FUSION, program(PROGRAM))) == ()
