from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.undonated_arguments import UndonatedArguments
from tb_perfadvisor.testing import check_rule, find
from tests.support.program_values import FIXED, SLOW, drawn, program

CACHE = "bf16[16,8,2048,128]{3,2,1,0:T(8,128)(2,1)}"
NEW = "bf16[16,8,1,128]{3,2,1,0:T(8,128)(2,1)}"
COPY = f"%copy.25 = {CACHE} copy({CACHE} %cache)"
PROGRAM = f"""
    %cache = {CACHE} parameter(0) NOTE
    %new = {NEW} parameter(1)
    {COPY}
    %update.1 = {CACHE} dynamic-update-slice({CACHE} %copy.25, {NEW} %new) // result
"""
COPIED, DONATED = (program(PROGRAM.replace("NOTE", note)) for note in ("", "// aliased"))


def test_saves_what_the_copy_takes() -> None:
    checked = check_rule(
        UndonatedArguments,
        slow=drawn(SLOW, COPY, COPIED),
        fixed=drawn(FIXED, COPY, DONATED),
        scales=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 16 · 8 · 2048 · 128 · 2 B = 67.1 MB take 81.9 µs at the peak of 819 GB/s. Two passes are the
    # most that goes, in each of two steps.
    assert finding.saving.high_ns == pytest.approx(2 * 2 * 81_920 / 0.92, rel=0.15)
    assert finding.saving.expected_ns == pytest.approx(finding.saving.high_ns * 1.3 / 2, rel=0.01)
    assert "64.0 MiB" in finding.summary


def test_a_donated_argument_is_not_copied() -> None:
    assert find(UndonatedArguments, drawn(SLOW, COPY, DONATED)) == ()


def test_an_optimizer_writes_all_of_its_state_anyway() -> None:
    text = f"""
        %state = {CACHE} parameter(0)
        %gradient = {CACHE} parameter(1)
        %copy.25 = {CACHE} add({CACHE} %state, {CACHE} %gradient) // result
    """
    assert find(UndonatedArguments, drawn(SLOW, COPY, program(text))) == ()
