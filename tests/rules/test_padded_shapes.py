from __future__ import annotations

from typing import Any

from tb_perfadvisor.rules.xla.padded_shapes import PaddedShapes
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import xla_op
from tb_perfadvisor.trace import KernelFamily, Precision

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |LSSSSSSSSS|LSSSSSSSSS|
    tpu 0  |XXXXXXXXYY|XXXXXXXXYY|
"""
# The same work in shapes that fit takes three quarters of the time.
FIXED = """
    cell 1ms
    step   |........|........|
    main   |LSSSSSSS|LSSSSSSS|
    tpu 0  |XXXXXXYY|XXXXXXYY|
"""


def _dot(columns: int) -> dict[str, Any]:
    """A dot of [128, 512] and [512, columns]; the layout pads columns to 128."""
    text = (
        f"%dot.1 = bf16[128,{columns}]{{1,0:T(8,128)(2,1)}} dot("
        "bf16[128,512]{1,0:T(8,128)(2,1)} %x, "
        f"bf16[512,{columns}]{{1,0:T(8,128)(2,1)}} %w), "
        "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    )
    symbol = xla_op(
        "dot.1",
        text,
        family=KernelFamily.MATMUL,
        precision=Precision.BITS_16,
        category="convolution",
        source_line="model.py:37",
    )
    return {"X": symbol}


def test_saves_what_the_fix_saves() -> None:
    # 192 columns take the room of 256: a quarter of 8 ms is padding.
    checked = check_rule(
        PaddedShapes,
        slow=draw(SLOW, legend=_dot(192)),
        fixed=draw(FIXED, legend=_dot(256)),
        saves="2ms",
    )
    assert checked.expected_ns == 2_000_000
    assert "192 is no multiple of 128" in checked.findings[0].summary


def test_shapes_that_fit_are_fine() -> None:
    assert find(PaddedShapes, SLOW, legend=_dot(256)) == ()


def test_not_applicable_without_tiles() -> None:
    trace = """
        cell 1ms
        step   |....|....|
        main   |o...|o...|
        gpu 7  |KKKK|KKKK|
    """
    assert find(PaddedShapes, trace) is None


def test_just_below_and_just_above_the_limit() -> None:
    # 2 ms of 10 ms: 20 %.
    below, above = {"minimum_share": 0.19}, {"minimum_share": 0.21}
    assert len(find(PaddedShapes, SLOW, legend=_dot(192), settings=below) or ()) == 1
    assert find(PaddedShapes, SLOW, legend=_dot(192), settings=above) == ()


def test_operations_below_their_own_limit_are_left_alone() -> None:
    # A quarter of the dot is padding.
    assert find(PaddedShapes, SLOW, legend=_dot(192), settings={"minimum_op_share": 0.26}) == ()
    below = {"minimum_op_share": 0.24}
    assert len(find(PaddedShapes, SLOW, legend=_dot(192), settings=below) or ()) == 1
