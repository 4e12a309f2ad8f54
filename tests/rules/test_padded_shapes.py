from __future__ import annotations

from typing import Any

from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.xla.padded_shapes import PaddedShapes
from tb_perfadvisor.testing import TraceBuilder, check_rule, draw, find, us
from tb_perfadvisor.testing.symbols import xla_op
from tb_perfadvisor.trace import KernelFamily, Precision, Trace

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |LSSSSSSSSS|LSSSSSSSSS|
    tpu 0  |XXXXXXXXYY|XXXXXXXXYY|
"""
# The same work in shapes that fill their tiles takes three quarters of the time.
FIXED = """
    cell 1ms
    step   |........|........|
    main   |LSSSSSSS|LSSSSSSS|
    tpu 0  |XXXXXXYY|XXXXXXYY|
"""


def dot(columns: int) -> dict[str, Any]:
    """A dot of [128, 512] and [512, columns]; the layout pads columns to multiples of 128."""
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
    # 192 columns take as much room as 256: a quarter of 8 ms is padding.
    checked = check_rule(
        PaddedShapes,
        slow=draw(SLOW, legend=dot(192)),
        fixed=draw(FIXED, legend=dot(256)),
        saves="2ms",
    )
    assert checked.expected_ns == 2_000_000
    assert "192 is not a multiple of 128" in checked.findings[0].summary


def test_shapes_that_fill_their_tiles_pass() -> None:
    assert find(PaddedShapes, SLOW, legend=dot(256)) == ()


def test_not_applicable_without_tiles() -> None:
    trace = """
        cell 1ms
        step   |....|....|
        main   |o...|o...|
        gpu 7  |KKKK|KKKK|
    """
    assert find(PaddedShapes, trace) is None


def test_fires_only_above_the_limit() -> None:
    # Padding takes 2 of 10 ms: 20 %.
    below, above = {"minimum_share": 0.19}, {"minimum_share": 0.21}
    assert len(find(PaddedShapes, SLOW, legend=dot(192), settings=below) or ()) == 1
    assert find(PaddedShapes, SLOW, legend=dot(192), settings=above) == ()


def test_operations_with_little_padding_do_not_count() -> None:
    # A quarter of the dot is padding.
    assert find(PaddedShapes, SLOW, legend=dot(192), settings={"minimum_op_share": 0.26}) == ()
    below = {"minimum_op_share": 0.24}
    assert len(find(PaddedShapes, SLOW, legend=dot(192), settings=below) or ()) == 1


def dot_steps(rows: int, columns: int, taking_us: int) -> Trace:
    """Two steps with a dot of [rows, 128] and [128, columns], and 1 ms of unpadded work."""
    text = (
        f"%dot.1 = bf16[{rows},{columns}]{{1,0:T(8,128)(2,1)}} dot("
        f"bf16[{rows},128]{{1,0:T(8,128)(2,1)}} %x, "
        f"bf16[128,{columns}]{{1,0:T(8,128)(2,1)}} %w), "
        "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    )
    fits = "%add.1 = f32[8,128]{1,0:T(8,128)} add(f32[8,128]{1,0:T(8,128)} %x)"
    builder = TraceBuilder("jax").device("TPU v5 lite", kind="tpu")
    at = 0
    for number in range(2):
        end = at + us(taking_us + 1_000)
        builder.step(number, at, end).launch(at, at + 1).synchronize(at + 1, end)
        builder.xla_op("dot.1", at, at + us(taking_us), text=text, family=KernelFamily.MATMUL)
        builder.xla_op("add.1", at + us(taking_us), end, text=fits)
        at = end
    return builder.build()


def test_prediction_is_exact_for_100_by_30() -> None:
    # 100 x 30 of 104 x 128 elements are useful: 3,000 of 13,312 us. In whole tiles of 128 x 128,
    # the same useful work takes exactly that.
    checked = check_rule(
        PaddedShapes,
        slow=dot_steps(100, 30, 13_312),
        fixed=dot_steps(128, 128, 3_000),
        saves=us(10_312),
    )
    assert checked.expected_ns == us(10_312)
    (finding,) = checked.findings
    table = finding.evidence[0]
    assert isinstance(table, Table)
    name, worst, fits, of, share, count, total_ns, wasted_ns, _ = table.rows[0]
    assert (name, of, count) == ("dot.1", "multiplications", 2)
    assert worst == "bf16[100,30] (30 is not a multiple of 128, 100 is not a multiple of 8)"
    assert fits == "bf16[104,128]"
    assert share == 1 - 3_000 / 13_312
    assert (total_ns, wasted_ns) == (2 * us(13_312), 2 * us(10_312))


def test_suggests_a_batch_that_takes_as_much_room() -> None:
    text = (
        "%convolution.1 = bf16[30,128]{1,0:T(8,128)(2,1)} convolution("
        "bf16[30,256]{1,0:T(8,128)(2,1)} %x, bf16[256,128]{1,0:T(8,128)(2,1)} %w), "
        "dim_labels=bf_io->bf"
    )
    (finding,) = find(PaddedShapes, SLOW, legend={"X": xla_op("convolution.1", text)}) or ()
    assert finding.summary.endswith("A batch of 32 per core takes as much room as 30.")
