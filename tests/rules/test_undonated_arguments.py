from __future__ import annotations

from tb_perfadvisor.rules.xla.faster_operations import UndonatedArguments
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
    # The copy does nothing else: of its 400 µs in each of two steps, all may go, and most does.
    assert finding.saving.high_ns == 2 * 400_000
    assert finding.saving.expected_ns == 2 * 360_000
    assert "64.0 MiB" in finding.summary


def test_a_loop_copies_its_argument_once() -> None:
    text = f"""
        %cache = {CACHE} parameter(0)
        %new = {NEW} parameter(1)
        %copy.1 = {CACHE} copy({CACHE} %cache)
        %update.1 = {CACHE} dynamic-update-slice({CACHE} %copy.1, {NEW} %new) // result, runs=64
    """
    update = f"%update.1 = {CACHE} dynamic-update-slice({CACHE} %copy.1, {NEW} %new)"
    # Most of the time goes into 64 updates, which stay.
    assert find(UndonatedArguments, drawn(SLOW, update, program(text))) == ()


def test_a_donated_argument_is_not_copied() -> None:
    assert find(UndonatedArguments, drawn(SLOW, COPY, DONATED)) == ()


def test_an_optimizer_writes_all_of_its_state_anyway() -> None:
    text = f"""
        %state = {CACHE} parameter(0)
        %gradient = {CACHE} parameter(1)
        %copy.25 = {CACHE} add({CACHE} %state, {CACHE} %gradient) // result
    """
    assert find(UndonatedArguments, drawn(SLOW, COPY, program(text))) == ()


TABLE, ROWS = "f32[400000,16]{1,0}", "f32[3072,1,16]{2,1,0}"
