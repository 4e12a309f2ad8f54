from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.launch.mapped_samples import MappedSamples
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import operator
from tb_perfadvisor.trace import Trace

SLOW = """
    cell 50us
    step |..............|..............|
    main |.fc..c...smmm.|.fc..c...smmm.|
"""
FIXED = """
    cell 50us
    step |.......|.......|
    main |..c.mmm|..c.mmm|
"""


def trace(drawing: str = SLOW, *, loop: str = "map") -> Trace:
    body = f"{loop}/while/body/_1/{loop}/while/Cumsum:Cumsum"
    unstack = f"{loop}/TensorArrayUnstack/TensorListFromTensor:TensorListFromTensor"
    stack = f"{loop}/TensorArrayV2Stack/TensorListStack:TensorListStack"
    legend = {
        "f": operator(unstack, launches=False),
        "c": operator(body if drawing != FIXED else "Cumsum:Cumsum", launches=False),
        "s": operator(stack, launches=False),
        "m": operator("dense/MatMul:MatMul", launches=False),
    }
    return draw(drawing, legend=legend, framework="tensorflow")


@pytest.mark.parametrize("loop", ["map", "StatefulPartitionedCall/map_1"])
def test_a_batch_is_mapped_at_once(loop: str) -> None:
    checked = check_rule(
        MappedSamples,
        slow=trace(loop=loop),
        fixed=trace(FIXED),
        saves="350us",
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 85 % of 7 cells in each of two steps.
    assert finding.saving.expected_ns == 595_000


@pytest.mark.parametrize("loop", ["lstm", "bitmap", "scan"])
def test_other_loops_need_their_order(loop: str) -> None:
    assert find(MappedSamples, trace(loop=loop)) == ()


def test_long_operators_and_operators_beside_the_loop_do_not_count() -> None:
    long = SLOW.replace("fc..c...s", "fcccccccs")
    assert find(MappedSamples, trace(long)) == ()
    beside = SLOW.replace("fc..c...s", "fmmmmmmms")
    assert find(MappedSamples, trace(beside)) == ()


def test_other_frameworks_are_left_alone() -> None:
    other = trace()
    source = replace(other.source, framework="jax")
    assert find(MappedSamples, replace(other, source=source)) == ()
