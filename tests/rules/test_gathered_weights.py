from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor.rules.compute.forms import GatheredWeights
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, run_of
from tb_perfadvisor.testing.builder import us
from tb_perfadvisor.testing.symbols import Symbol, kernel, operator
from tb_perfadvisor.trace import Trace
from tests.support.corpus_traces import read

# Names and shapes of tracelens/eval_moe_nv/moe_05_large_capacity: 8 experts, 1,024 choices.
HALF = "c10::BFloat16"


def legend(table: str = "[8,2048,1024]", operand: str = "[1024,2048,1024]") -> dict[str, Symbol]:
    return {
        "x": operator("aten::index", shapes=f"[{table},[]]", dtypes=f"{HALF};"),
        "v": operator("aten::bmm", shapes=f"[[1024,1,2048],{operand}]", dtypes=f"{HALF};{HALF}"),
        "G": kernel("void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)"),
    }


SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |xvSSSSSSSS|xvSSSSSSSS|
    gpu 7  |GGGGGGHHHH|GGGGGGHHHH|
"""
FIXED = """
    cell 1ms
    step   |....|....|
    main   |vSSS|vSSS|
    gpu 7  |HHHH|HHHH|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        GatheredWeights, slow=SLOW, fixed=FIXED, saves="6ms", legend=legend(), exactly=False
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # Two steps: the gather takes 6 ms, and the product 4 ms. In the replay, the gather is gone.
    assert finding.saving.low_ns == 6_000_000
    assert finding.saving.high_ns == 20_000_000
    assert finding.summary == (
        "6.00 ms of each step (60.0 %) goes into copying a matrix for each row (1 kernel per step):"
        " 1,024 matrices are made of 8, and each is multiplied by one row."
    )
    assert [remedy.change for remedy in finding.remedies] == ["grouped-products"]


@pytest.mark.parametrize(
    ("table", "operand"),
    [
        ("[8,2048,1024]", "[8,2048,1024]"),  # a permutation
        ("[8,2048,1024]", "[1024,512,1024]"),  # of another size
        ("[50000,1024]", "[1024,2048,1024]"),  # rows of a table
    ],
)
def test_other_gathers_are_left_alone(table: str, operand: str) -> None:
    assert find(GatheredWeights, SLOW, legend=legend(table, operand)) == ()


def test_matrices_may_be_transposed() -> None:
    assert find(GatheredWeights, SLOW, legend=legend(operand="[1024,1024,2048]"))


def test_just_below_and_just_above_the_limit() -> None:
    for share, fires in ((0.61, False), (0.59, True)):
        settings = {"minimum_share": share}
        found = find(GatheredWeights, SLOW, legend=legend(), settings=settings)
        assert bool(found) is fires


def on_cpu(gather_us: int, product_us: int) -> Trace:
    """Three steps on the CPU: a gather, a product with what it copied, and a sort."""
    builder, at = TraceBuilder(), 0
    for number in range(3):
        builder.step(number, us(at), us(at + gather_us + product_us + 1000))
        for name, shapes, length_us in (
            ("aten::index", [[8, 128, 128], []], gather_us),
            ("aten::bmm", [[256, 1, 128], [256, 128, 128]], product_us),
            ("aten::sort", [[256]], 1000),
        ):
            if length_us:
                span = us(at), us(at + length_us)
                dtypes = ["float"] * len(shapes)
                builder.operator(name, *span, shapes=shapes, dtypes=dtypes, launches=False)
            at += length_us
    return builder.build()


@pytest.mark.corpus
def test_experts_that_are_copied_for_each_token(corpus: Path) -> None:
    run = run_of(read(corpus, "tracelens/eval_moe_nv/moe_05_large_capacity/*.gz"))
    (finding,) = find(GatheredWeights, run) or ()
    # The raw events of the file: 12 kernels take 6,490 of 10,500 us. Launches keep 2 % of that.
    assert finding.saving is not None
    assert finding.saving.expected_ns == pytest.approx(6_490_000, rel=0.02)
