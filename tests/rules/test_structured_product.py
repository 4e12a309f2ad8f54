"""The operations are those of JAX 0.10.2."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.xla.structured_product import StructuredProduct
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import xla_op
from tb_perfadvisor.trace import Trace
from tests.support.program_values import MODULE, program

N, X = "[700,700]{1,0}", "f32[700,64]{1,0}"
SLOW = """
    cell 10us
    step  |............|............|
    main  |LSSSSSSSSSSS|LSSSSSSSSSSS|
    tpu 0 |XXmmpppppppp|XXmmpppppppp|
"""
FIXED = """
    cell 10us
    step  |...|...|
    main  |LSS|LSS|
    tpu 0 |XXn|XXn|
"""
DIAGONAL = f"""
    %d = f32[700]{{0}} parameter(0)
    %x = {X} parameter(1)
    %zero = f32[] constant(0)
    %i = s32{N} iota(), iota_dimension=0 // in fusion.1
    %j = s32{N} iota(), iota_dimension=1 // in fusion.1
    %eye = pred{N} compare(s32{N} %i, s32{N} %j), direction=EQ // in fusion.1
    %ds = f32{N} broadcast(f32[700]{{0}} %d), dimensions={{1}} // in fusion.1
    %zeros = f32{N} broadcast(f32[] %zero), dimensions={{}} // in fusion.1
    %matrix = f32{N} select(pred{N} %eye, f32{N} %ds, f32{N} %zeros) // in fusion.1
    %dot.2 = {X} dot(f32{N} %matrix, {X} %x), lhs_contracting_dims={{1}} // result
"""
TRIANGLE = DIAGONAL.replace("direction=EQ", "direction=GE").replace(
    "broadcast(f32[700]{0} %d), dimensions={1}", "broadcast(f32[] %zero), dimensions={}"
)
BLOCKS = DIAGONAL.replace(
    "select(pred[700,700]{1,0} %eye, f32", "multiply(pred[700,700]{1,0} %eye, f32"
).replace(", f32[700,700]{1,0} %zeros)", ")")

BOTH = "f32[20,35,20,35]{3,2,1,0}"
KRONECKER = f"""
    %a = f32[20,20]{{1,0}} parameter(0)
    %b = f32[35,35]{{1,0}} parameter(1)
    %x = {X} parameter(2)
    %noise = f32{N} parameter(3)
    %as = {BOTH} broadcast(f32[20,20]{{1,0}} %a), dimensions={{0,2}} // in fusion.1
    %bs = {BOTH} broadcast(f32[35,35]{{1,0}} %b), dimensions={{1,3}} // in fusion.1
    %outer = {BOTH} multiply({BOTH} %as, {BOTH} %bs) // in fusion.1
    %full = f32{N} bitcast({BOTH} %outer) // in fusion.1
    %i = s32{N} iota(), iota_dimension=0 // in fusion.1
    %j = s32{N} iota(), iota_dimension=1 // in fusion.1
    %eye = pred{N} compare(s32{N} %i, s32{N} %j), direction=EQ // in fusion.1
    %zero = f32[] constant(0)
    %zeros = f32{N} broadcast(f32[] %zero), dimensions={{}} // in fusion.1
    %ridge = f32{N} select(pred{N} %eye, f32{N} %noise, f32{N} %zeros) // in fusion.1
    %matrix = f32{N} add(f32{N} %full, f32{N} %ridge) // in fusion.1
    %dot.2 = {X} dot(f32{N} %matrix, {X} %x), lhs_contracting_dims={{1}} // result
"""


def trace(text: str = DIAGONAL, drawing: str = SLOW, path: str = "jit(step)/dot_general") -> Trace:
    values = program(text)
    symbols = {
        "m": xla_op("fusion.1", f"%fusion.1 = f32{N} fusion()", module=MODULE),
        "p": xla_op("dot.2", f"%dot.2 = {X} dot(f32{N} %fusion.1, {X} %x)", module=MODULE),
        "n": xla_op("fusion.3", f"%fusion.3 = {X} fusion()", module=MODULE),
    }
    drawn = draw(drawing, legend=symbols, device="TPU v5 lite")
    row = values.rows_of(("dot",))[0]
    return replace(drawn, programs=(replace(values, paths={row: path}),))


def test_rows_are_scaled_in_one_pass() -> None:
    checked = check_rule(
        StructuredProduct, slow=trace(), fixed=trace(drawing=FIXED), scales=False, exactly=False
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 20 us make the matrix, and of 80 us of the product 5 % remain; at worst a quarter.
    assert finding.saving.expected_ns == 2 * (20_000 + 76_000)
    assert finding.saving.low_ns == 2 * (20_000 + 60_000)
    assert finding.instance == "a diagonal of 700 (model.py:37)"


def test_blocks_along_a_diagonal() -> None:
    assert find(StructuredProduct, trace(BLOCKS))


def test_a_triangle_of_ones_is_a_cumulative_sum() -> None:
    (finding,) = find(StructuredProduct, trace(TRIANGLE)) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 2 * (20_000 + 68_000)
    assert finding.instance == "a triangle of 700 rows (model.py:37)"


def test_a_kronecker_product_is_two_small_products() -> None:
    checked = check_rule(
        StructuredProduct,
        slow=trace(KRONECKER),
        fixed=trace(drawing=FIXED),
        scales=False,
        exactly=False,
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # 20 us make the matrix, and of 80 us of the product 15 % remain; at worst a half. At best, two
    # products by 20 and by 35 rows remain of one by 700.
    assert finding.saving.expected_ns == 2 * (20_000 + 68_000)
    assert finding.saving.low_ns == 2 * (20_000 + 40_000)
    assert finding.saving.high_ns == pytest.approx(2 * (20_000 + 80_000 * (1 - 55 / 700)), rel=0.01)
    assert finding.instance == "a Kronecker product of 700 rows (model.py:37)"
    assert finding.remedies[0].change == "two-small-products"


def test_a_kronecker_product_without_a_ridge() -> None:
    assert find(
        StructuredProduct,
        trace(KRONECKER.replace("dot(f32[700,700]{1,0} %matrix", "dot(f32[700,700]{1,0} %full")),
    )


@pytest.mark.parametrize(
    ("text", "path"),
    [
        # An outer product of other pairs, such as scores of all pairs of rows.
        (KRONECKER.replace("dimensions={1,3}", "dimensions={2,3}"), "jit(step)/dot_general"),
        # A factor with all four dimensions.
        (KRONECKER.replace("f32[20,35,20,35]{3,2,1,0} %as", f"{BOTH} %outer"), "jit(step)"),
        # Something else than a diagonal is added.
        (KRONECKER.replace("f32[700,700]{1,0} %ridge)", "f32[700,700]{1,0} %noise)"), "jit(step)"),
        # A mask of scores, whose values are computed.
        (DIAGONAL.replace("direction=EQ", "direction=GE"), "jit(step)/dot_general"),
        # One-hot rows: a gather.
        (DIAGONAL.replace(f"%j = s32{N} iota()", f"%j = s32{N} parameter(2)"), "jit(step)/dot"),
        # A ridge is added to a full matrix.
        (DIAGONAL.replace("%matrix = f32", "%ridge = f32").replace("dot(f32[700,700]{1,0} %matrix",
         "dot(f32[700,700]{1,0} %zeros"), "jit(step)/dot_general"),
        (DIAGONAL, "jit(step)/vmap(jvp())/dot_general"),
    ],
)  # fmt: skip
def test_full_matrices_are_fine(text: str, path: str) -> None:
    assert find(StructuredProduct, trace(text, path=path)) == ()
