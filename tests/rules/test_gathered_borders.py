"""What is gathered from all devices though each reads little of it."""

from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.excess_work import ExcessWork
from tb_perfadvisor.testing import find
from tests.support.program_values import SLOW, drawn, program

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
