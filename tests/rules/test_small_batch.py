"""The texts are those of libtpu 0.0.52 for a TPU v5e and a TPU7x."""

from __future__ import annotations

import pytest

from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.xla.utilization import SmallBatch
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import Symbol, xla_op

DEVICE = "TPU v5e"
DRAWING = """
    cell 10us
    step  |.....|.....|.....|
    main  |LSSSS|LSSSS|LSSSS|
    tpu 0 |sssss|sssss|sssss|
"""
WEIGHTS = "bf16[2048,8192]{1,0:T(8,128)(2,1)}"


def one_row() -> dict[str, Symbol]:
    text = (
        "%multiply_reduce_fusion.3 = bf16[8192]{0:T(1024)(128)(2,1)S(1)} fusion("
        f"{WEIGHTS} %layers_0___up__.1, bf16[2048]{{0:T(1024)(128)(2,1)S(1)}} %reduce.12), "
        "kind=kLoop, calls=%fused_computation.3"
    )
    inside = {"inside_opcodes": "broadcast convert multiply reduce"}
    return {"s": xla_op("multiply_reduce_fusion.3", text, path="jit(f)/dot_general", **inside)}


def rows(count: int, *, weights: str = "%layers_0___up__.1") -> dict[str, Symbol]:
    left = f"bf16[{count},2048]{{1,0:T(8,128)(2,1)}}"
    result = f"bf16[{count},8192]{{1,0:T(8,128)(2,1)}}"
    text = f"%fusion.7 = {result} fusion({left} %x.1, {WEIGHTS} {weights}), kind=kOutput"
    product = (
        f"%convolution.2 = {result} convolution({left} %p.1, {WEIGHTS} %p.2), dim_labels=bf_io->bf"
    )
    return {"s": xla_op("fusion.7", text, path="jit(f)/dot_general", product=product)}


def found(legend: dict[str, Symbol]) -> tuple[Finding, ...]:
    return find(SmallBatch, DRAWING, legend=legend, device=DEVICE) or ()


def test_more_rows_bring_no_less_time_but_more_samples() -> None:
    checked = check_rule(
        SmallBatch,
        slow=draw(DRAWING, legend=one_row(), device=DEVICE),
        fixed=draw(DRAWING, legend=rows(256), device=DEVICE),
        scales=False,
    )
    (finding,) = checked.findings
    assert (finding.saving, finding.severity) == (None, "low")
    batch = finding.larger_batch
    assert batch is not None
    assert (batch.rows, batch.more_rows) == (1, 8)
    # 2,048 x 8,192 x 2 B = 33.55 MB take 40.97 us at 819 GB/s: 81.94 % of 50 us.
    # Of the time per row, 7/8 go if the step stays as long.
    assert batch.low_share == pytest.approx(0.8194 * 7 / 8, abs=1e-4)
    assert batch.expected_share == pytest.approx((1 + 0.8194) / 2 * 7 / 8, abs=1e-4)
    # The step may take as long as its weights.
    assert batch.high_share == pytest.approx(1 - 0.8194 / 8, abs=1e-4)
    assert "reads 32.0 MiB of weights, which takes at least 81.9 % of it, for a single row." in (
        finding.summary
    )


@pytest.mark.parametrize(
    ("count", "more"),
    [
        (9, 16),  # fills the tile of 8
        (16, 32),
        (60, 64),
        # The unit takes as long as the memory for 197 TFLOP/s / 819 GB/s = 240 rows. Twice 64 rows
        # are more than half of that.
        (64, None),
    ],
)
def test_as_many_rows_are_proposed_as_take_no_longer(count: int, more: int | None) -> None:
    batches = [finding.larger_batch for finding in found(rows(count))]
    assert [batch.more_rows for batch in batches if batch] == ([] if more is None else [more])


def test_what_the_program_computes_are_no_weights() -> None:
    assert found(rows(10))
    assert found(rows(10, weights="%fusion.7")) == ()


def test_fires_only_above_the_limit() -> None:
    for value, count in ((0.81, 1), (0.83, 0)):
        settings = {"minimum_weight_share": value}
        findings = find(SmallBatch, DRAWING, legend=one_row(), device=DEVICE, settings=settings)
        assert len(findings or ()) == count


def test_fires_only_where_the_matrix_unit_has_room() -> None:
    # 32 of 240.5 rows are 13.3 %.
    for value, count in ((0.14, 1), (0.13, 0)):
        settings = {"maximum_compute_share": value}
        findings = find(SmallBatch, DRAWING, legend=rows(16), device=DEVICE, settings=settings)
        assert len(findings or ()) == count


def test_many_tokens_times_a_narrow_router_are_no_small_batch() -> None:
    left, right = "bf16[16384,2048]{1,0:T(8,128)(2,1)}", "bf16[2048,16]{0,1:T(8,128)(2,1)}"
    result = "bf16[16384,16]{1,0:T(8,128)(2,1)}"
    text = f"%fusion.7 = {result} fusion({left} %x.1, {right} %router.1), kind=kOutput"
    product = (
        f"%convolution.2 = {result} convolution({left} %p.1, {right} %p.2), dim_labels=bf_io->bf"
    )
    legend = {"s": xla_op("fusion.7", text, path="jit(f)/dot_general", product=product)}
    assert found(legend) == ()
