"""One-hot matrices that are sums over the experts of a token, and what makes them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.xla.excess_work import ExcessWork
from tb_perfadvisor.testing import draw, find
from tb_perfadvisor.testing.symbols import xla_op
from tb_perfadvisor.trace import Trace
from tests.support.program_values import MODULE, SLOW, program

CHOSEN, SLOTS = "pred[2048,2,1024]{2,1,0}", "bf16[2048,1024]{1,0}"
PLACES = "s32[2048,2,1024]{2,1,0}"
CONTRACTED = "lhs_contracting_dims={0}, rhs_contracting_dims={0}"
X, INPUTS = "bf16[2048,512]{1,0}", "bf16[1024,512]{1,0}"
ROUTING = f"""
    %x = {X} parameter(0)
    %place = s32[2048,2]{{1,0}} parameter(1)
    %places = {PLACES} broadcast(s32[2048,2] %place), dimensions={{0,1}} // in made
    %iota = {PLACES} iota(), iota_dimension=2 // in made
    %is = {CHOSEN} compare({PLACES} %places, {PLACES} %iota), direction=EQ // in made
    %ones = bf16[2048,2,1024]{{2,1,0}} convert({CHOSEN} %is) // in made
    %zero = bf16[] constant(0) // in made
    %sum = {SLOTS} reduce(bf16[2048,2,1024] %ones, bf16[] %zero), dimensions={{1}} // in made
    %inputs = {INPUTS} dot({SLOTS} %sum, {X} %x), {CONTRACTED} // result
"""


def routing(text: str) -> Trace:
    operations = {
        "s": f"%inputs = {INPUTS} fusion({SLOTS} %made, {X} %x), kind=kOutput",
        "t": f"%made = {SLOTS} fusion(s32[2048,2] %place), kind=kLoop",
    }
    legend = {
        letter: xla_op(of.partition(" = ")[0].lstrip("%"), of, module=MODULE)
        for letter, of in operations.items()
    }
    trace = draw(SLOW.replace("ssss", "ttss"), legend=legend, device="TPU v5 lite")
    return replace(trace, programs=(program(text),))


def test_tokens_are_looked_up_for_their_experts() -> None:
    (finding,) = find(ExcessWork, routing(ROUTING)) or ()
    assert "2 operations" in finding.summary
    assert "one-hot matrix" in finding.summary
    assert "by index" in finding.remedies[0].text
    assert finding.saving is not None
    # A gather of 1,024 rows takes 4 ns for each; their bytes, and a sixth of the product, less.
    assert finding.saving.expected_ns == pytest.approx(2 * (400_000 - 1024 * 4), rel=0.0001)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # The matrix is returned, too.
        ("dimensions={1} // in made", "dimensions={1} // in made, result"),
        # Something else reads it.
        ("// result\n", f"// result\n    %kept = {SLOTS} tanh({SLOTS} %sum) // result\n"),
    ],
)
def test_a_matrix_that_something_else_needs_is_made(before: str, after: str) -> None:
    changed = ROUTING.replace(before, after)
    assert changed != ROUTING
    assert all(
        "2 operations" not in found.summary for found in find(ExcessWork, routing(changed)) or ()
    )


@pytest.mark.parametrize(
    "changed",
    [
        # A sum of many is no look-up.
        ROUTING.replace("2048,2", "2048,16"),
        # A small table is multiplied at once.
        ROUTING.replace("2048", "256"),
        # Two of positions make an identity matrix, and other comparisons make masks.
        ROUTING.replace("broadcast(s32[2048,2] %place), dimensions={0,1}", "iota()"),
        ROUTING.replace("direction=EQ", "direction=GE"),
    ],
)
def test_other_matrices_are_multiplied(changed: str) -> None:
    assert changed != ROUTING
    assert all("one-hot" not in found.summary for found in find(ExcessWork, routing(changed)) or ())
