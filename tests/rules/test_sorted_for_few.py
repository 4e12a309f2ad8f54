"""The program is that of `jax.random.choice(replace=False)` in JAX 0.10.2, without most of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.xla.faster_operations import SortedForFew
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.trace import Trace
from tests.support.program_values import FIXED, SLOW, drawn, program

ALL = "u32[200000]{0}"
SORT = f"%sort.6 = ({ALL}, s32[200000]{{0}}) sort({ALL} %keys, s32[200000]{{0}} %places)"
PATH = "jit(train_step)/jit(_shuffle)/sort"
PROGRAM = f"""
    %keys = {ALL} parameter(0)
    %places = s32[200000]{{0}} parameter(1)
    {SORT}
    %slice = s32[256]{{0}} slice({ALL} %sort.6), slice={{[0:256]}} // result
"""


def trace(text: str, path: str = PATH, drawing: str = SLOW) -> Trace:
    values = program(text)
    sort = next(iter(values.rows_of(("sort",))), 0)
    return drawn(drawing, SORT, replace(values, paths={sort: path}), path=path)


def test_a_sample_needs_no_sort() -> None:
    checked = check_rule(
        SortedForFew,
        slow=trace(PROGRAM),
        fixed=trace(PROGRAM.replace("256", "200000"), drawing=FIXED),
        scales=False,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 400 of 1,000 µs in both steps, of which a twentieth is expected to remain, at worst a quarter.
    saving = finding.saving
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (600_000, 760_000, 800_000)
    assert "256 of 200,000" in finding.instance
    assert "Draw the indices" in finding.remedies[0].text


def test_the_largest_are_selected() -> None:
    (finding,) = find(SortedForFew, trace(PROGRAM, "jit(rank)/sort")) or ()
    assert finding.saving is not None
    # A selection takes 40 % as long, at worst 80 %, and at best hardly any time.
    saving = finding.saving
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (160_000, 480_000, 800_000)
    assert "Select the largest" in finding.remedies[0].text


@pytest.mark.parametrize(
    "text",
    [
        # A third of the elements.
        PROGRAM.replace("256", "66667"),
        # Read whole by something else.
        f"{PROGRAM}\n%sum = {ALL} add({ALL} %sort.6, {ALL} %keys) // result",
        # Returned.
        PROGRAM.replace("%places)", "%places) // result"),
        # So few that sorting takes no time.
        PROGRAM.replace("200000", "4000"),
    ],
)
def test_other_sorts_are_needed(text: str) -> None:
    assert find(SortedForFew, trace(text)) == ()


@pytest.mark.parametrize("path", ["jit(route)/top_k", ""])
def test_sorts_that_the_program_did_not_ask_for_are_xlas(path: str) -> None:
    assert find(SortedForFew, trace(PROGRAM, path)) == ()
