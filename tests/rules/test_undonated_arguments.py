from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.xla.faster_operations import UndonatedArguments
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import EventKind, Trace
from tests.support.program_values import FIXED, MODULE, SLOW, drawn, program

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
# The program of a step of JAX 0.10.2 on the CPU that adds to rows of a table.
ON_CPU = (
    f"""
    %table = {TABLE} parameter(0) NOTE
    %rows = s32[3072,1]{{1,0}} parameter(1)
    %copy.4 = {TABLE} copy({TABLE} %table)
    %gather.1 = {ROWS} gather({TABLE} %copy.4, s32[3072,1]{{1,0}} %rows)
    %scatter.1 = {TABLE} scatter({TABLE} %copy.4, s32[3072,1]{{1,0}} %rows, {ROWS} %gather.1)
""".rstrip()
    + " // result\n"
)
# One thread of the two that copy is recorded: 1 of 6 ms.
COPYING = """
    cell 1ms
    step |..........|..........|
    main |c.....gggs|c.....gggs|
    pool |......e...|......e...|
"""
UPDATING = """
    cell 1ms
    step |....|....|
    main |gggs|gggs|
"""


def on_cpu(drawing: str, note: str = "") -> Trace:
    operations = {
        "c": f"%copy.4 = {TABLE} copy({TABLE} %table)",
        "g": f"%gather.1 = {ROWS} gather({TABLE} %copy.4, s32[3072,1]{{1,0}} %rows)",
        "s": f"%scatter.1 = {TABLE} scatter({TABLE} %copy.4, s32[3072,1]{{1,0}} %rows)",
        "o": f"%add.7 = {ROWS} add({ROWS} %other, {ROWS} %other)",
    }
    legend = {
        letter: Symbol(
            EventKind.OPERATOR,
            text.split(" = ")[0].lstrip("%"),
            hlo={"text": text, "module": MODULE},
        )
        for letter, text in operations.items()
    }
    legend["e"] = Symbol(EventKind.RUNTIME, "end: copy.4")
    trace = draw(drawing, legend=legend, framework="jax")
    return replace(trace, programs=(program(ON_CPU.replace("NOTE", note)),))


def test_on_the_cpu_a_copy_lasts_until_its_reader_starts() -> None:
    checked = check_rule(
        UndonatedArguments,
        slow=on_cpu(COPYING),
        fixed=on_cpu(UPDATING, "// aliased"),
        saves="6ms",
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.saving.expected_ns == 2 * 5_400_000  # nine tenths of 6 ms, in two steps
    assert finding.saving.high_ns == 2 * 6_000_000
    # 400,000 rows of 16 numbers of 4 bytes are 25.6 MB.
    assert finding.instance == "1 arrays of 24.4 MiB"


@pytest.mark.parametrize(
    ("now", "then", "each_ns"),
    [
        # Others run for 2 ms meanwhile.
        ("c.....gggs", "c..oo.gggs", 4_000_000),
        # The reader waits for something else from the marked end on.
        ("......e", "..e....", 2_000_000),
        # Nothing marks the end.
        ("......e", ".......", 1_000_000),
    ],
)
def test_on_the_cpu_a_copy_counts_for_what_is_its_own(now: str, then: str, each_ns: int) -> None:
    (finding,) = find(UndonatedArguments, on_cpu(COPYING.replace(now, then))) or ()
    assert finding.saving is not None
    assert finding.saving.high_ns == 2 * each_ns


def test_on_the_cpu_a_donated_argument_is_not_copied() -> None:
    assert find(UndonatedArguments, on_cpu(COPYING, "// aliased")) == ()
