from __future__ import annotations

from typing import Any

import pytest

from tb_perfadvisor.hardware import find_device
from tb_perfadvisor.hardware.tpu_shape_costs import KINDS, Factors, nominal_costs
from tb_perfadvisor.rules.finding import Finding, Table
from tb_perfadvisor.rules.xla.utilization import PaddedShapes
from tb_perfadvisor.signals import reference_worker
from tb_perfadvisor.signals.tpu import fitting_sizes
from tb_perfadvisor.testing import check_rule, draw, find, run_of
from tb_perfadvisor.testing.symbols import xla_op
from tb_perfadvisor.trace import KernelFamily, Precision, Trace

SLOW = """
    cell 1ms
    step   |............|............|
    main   |LSSSSSSSSSSS|LSSSSSSSSSSS|
    tpu 0  |XXXXXXXXXXYY|XXXXXXXXXXYY|
"""
FIXED = """
    cell 1ms
    step   |..........|..........|
    main   |LSSSSSSSSS|LSSSSSSSSS|
    tpu 0  |XXXXXXXXYY|XXXXXXXXYY|
"""


@pytest.fixture
def nominal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model by which an operation takes what its padded multiplications take, and no more."""
    spec = find_device("TPU v5e")
    assert spec is not None
    costs = nominal_costs("v5e", spec, 1.5e9, 128)
    costs = costs._replace(factors=dict.fromkeys(KINDS, Factors(0, 1, 0, 0, 0)))
    monkeypatch.setattr(fitting_sizes, "costs_of", lambda signals: costs)


def dot(rows: int, contracted: int, columns: int) -> dict[str, Any]:
    text = (
        f"%dot.1 = bf16[{rows},{columns}]{{1,0:T(8,128)(2,1)}} dot("
        f"bf16[{rows},{contracted}]{{1,0:T(8,128)(2,1)}} %x, "
        f"bf16[{contracted},{columns}]{{1,0:T(8,128)(2,1)}} %w), "
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


def add(rows: int, columns: int) -> dict[str, Any]:
    shape = f"f32[{rows},{columns}]{{1,0:T(8,128)}}"
    return {"X": xla_op("add.1", f"%add.1 = {shape} add({shape} %x, f32[]{{:T(128)}} %c)")}


def slow(legend: dict[str, Any], device: str = "TPU v5 lite") -> Trace:
    return draw(SLOW, legend=legend, device=device)


def only(trace: Trace, **options: Any) -> Finding:
    (finding,) = find(PaddedShapes, trace, **options) or ()
    return finding


@pytest.mark.usefixtures("nominal")
def test_saves_what_the_fix_saves() -> None:
    # 751,616 x 640 x 2048 multiplications, at 197e12 FLOP/s, take 10 ms. 520 contracted terms take
    # as many passes as 640, and 512 take 512: a fifth less.
    checked = check_rule(
        PaddedShapes,
        slow=slow(dot(751_616, 520, 2048)),
        fixed=draw(FIXED, legend=dot(751_616, 512, 2048), device="TPU v5 lite"),
        saves="2ms",
    )
    assert checked.expected_ns == 2_000_000
    (finding,) = checked.findings
    assert finding.saving is not None
    # A third, and twice as much, in both steps.
    assert finding.saving.low_ns == pytest.approx(4_000_000 / 3, rel=1e-5)
    assert finding.saving.high_ns == 8_000_000
    assert "512 instead of 520 makes dot.1 20.0 % faster" in finding.summary
    assert finding.remedies[0].snippet == "size = 512  # instead of 520"
    assert finding.remedies[1].snippet == (
        "perfadvisor tpu-shapes product:751616x520,512x2048 --topology v5e"
    )


@pytest.mark.usefixtures("nominal")
def test_padding_is_shown_where_no_size_nearby_is_faster() -> None:
    # 40 columns take 128; no multiple of 128 is near.
    finding = only(slow(dot(1024, 512, 40)))
    assert finding.saving is None
    assert finding.severity == "low"
    assert "take 10.0 ms of each step (83.3 %); 68.8 % of their work is padding" in finding.summary
    assert "40 is not a multiple of 128" in finding.summary
    assert "would save hardly any time" in finding.summary
    table = finding.evidence[0]
    assert isinstance(table, Table)
    row = dict(zip((column.key for column in table.columns), table.rows[0], strict=True))
    assert (row["of"], row["count"], row["size"], row["saved_ns"]) == (
        "multiplications", 2, None, None,
    )  # fmt: skip
    # 88 of 128 columns are empty.
    assert row["share"] == row["empty"] == 88 / 128
    # The result and the weight have 88 columns of padding, 2 B each, in both steps.
    assert row["padding_bytes"] == 2 * 2 * 88 * (1024 + 512)


@pytest.mark.usefixtures("nominal")
def test_what_the_product_does_not_explain_follows_the_elements() -> None:
    # Recorded by XLA's compiler: scores of 4 x 16 heads over 513 positions, on a TPU v6e. The
    # product takes some 20 us. Of each 10 ms, nearly all goes into what is fused with it.
    scores = "bf16[4,16,{0},{0}]{{2,3,1,0:T(8,128)(2,1)S(1)}}"
    heads = "bf16[16,64,4,{0}]{{3,1,0,2:T(8,128)(2,1)S(1)}}"
    text = (
        f"%fusion.6 = {scores} fusion({heads} %fusion.19, {heads} %fusion.21), kind=kOutput"
    ).format(513)
    flop = 2.0 * 4 * 16 * 513 * 513 * 64
    finding = only(slow({"X": xla_op("fusion.6", text, flop=flop)}))
    assert finding.saving is not None
    # 64 x 640 x 520 and twice 64 x 64 x 640 elements; with 512, 64 x 512 x 512 and so on.
    kept = (64 * 512 * 512 + 2 * 64 * 64 * 512) / (64 * 640 * 520 + 2 * 64 * 64 * 640)
    assert kept == pytest.approx(0.790, abs=0.001)
    # Masking partial tiles takes time, too: 0.790^1.4 = 0.719.
    assert finding.saving.expected_ns == pytest.approx(2 * 10e6 * (1 - 0.719), rel=0.01)
    assert "512 instead of 513 makes fusion.6 28.1 % faster" in finding.summary
    assert finding.remedies[1].snippet == (
        "perfadvisor tpu-shapes batched-product:64x513,512x64x513,512 --topology v5e"
    )


@pytest.mark.usefixtures("nominal")
def test_a_fusion_of_several_products_follows_its_arrays() -> None:
    # Weighted values and their projection in one kernel, as XLA's compiler makes it for a TPU v5e.
    scores, rows = "f32[4,16,513,513]{2,3,1,0:T(8,128)S(1)}", "bf16[4,513,1024]{2,1,0:T(8,128)S(1)}"
    text = f"%fusion.13 = {rows} fusion({scores} %scores, s32[]{{:T(128)}} %i), kind=kOutput"
    flop = 2.0 * 4 * 513 * (16 * 513 * 64 + 1024 * 1024)
    finding = only(slow({"X": xla_op("fusion.13", text, flop=flop)}))
    assert finding.saving is not None
    # 64 x 640 x 520 scores of 4 B and 4 x 520 x 1,024 results of 2 B; with 512, 64 x 512 x 512 and
    # 4 x 512 x 1,024.
    kept = (64 * 512 * 512 * 4 + 4 * 512 * 1024 * 2) / (64 * 640 * 520 * 4 + 4 * 520 * 1024 * 2)
    assert kept == pytest.approx(0.797, abs=0.001)
    assert finding.saving.expected_ns == pytest.approx(2 * 10e6 * (1 - 0.797), rel=0.01)


@pytest.mark.usefixtures("nominal")
def test_no_operation_gets_faster_than_its_bytes_allow() -> None:
    # 1,000,000 x 520 and 1,000,000 x 2048 numbers of 2 B take 6.27 ms at 819 GB/s, and the weight
    # 2.6 us: of 10 ms, 520 -> 512 would save 2 ms, which leaves more than that.
    finding = only(slow(dot(1_000_000, 520, 2048)))
    assert finding.saving is not None
    assert finding.saving.expected_ns == 4_000_000
    # 1,500,000 rows take 9.41 ms, which leaves 0.59 ms.
    finding = only(slow(dot(1_500_000, 520, 2048)))
    assert finding.saving is not None
    assert finding.saving.expected_ns == pytest.approx(2 * 591_000, rel=0.01)


def test_arrays_save_the_time_that_their_bytes_explain() -> None:
    # In this layout, 130 columns take 256: without the last two, half of the bytes. 2,719,336 rows
    # of 256 numbers of 4 B, read and written, take 8 ms at 85 % of 819 GB/s. Half of that goes.
    finding = only(slow(add(2_719_336, 130)))
    assert finding.saving is not None
    assert finding.saving.expected_ns == pytest.approx(2 * 4_000_000, rel=1e-3)
    assert "128 instead of 130" in finding.summary
    # A hundredth of the rows explains a hundredth of the time.
    assert only(slow(add(27_192, 130))).saving is None


def test_layouts_that_hardly_pad_130_pass() -> None:
    # As XLA lays out [4096,130,130]: the large dimension is the fastest, and 130 takes 136.
    shape = "bf16[4096,130,130]{0,2,1:T(8,128)(2,1)}"
    symbol = xla_op("fusion.6", f"%fusion.6 = {shape} fusion({shape} %x, {shape} %y), kind=kLoop")
    assert find(PaddedShapes, slow({"X": symbol})) == ()


@pytest.mark.usefixtures("nominal")
def test_shapes_that_fill_their_tiles_pass() -> None:
    assert find(PaddedShapes, slow(dot(1024, 512, 2048))) == ()


def test_not_applicable_without_tiles() -> None:
    trace = """
        cell 1ms
        step   |....|....|
        main   |o...|o...|
        gpu 7  |KKKK|KKKK|
    """
    assert find(PaddedShapes, trace) is None


@pytest.mark.usefixtures("nominal")
def test_fires_only_above_the_limits() -> None:
    legend = dot(751_616, 520, 2048)
    # The dot takes 10 of 12 ms: 83 %.
    assert only(slow(legend), settings={"minimum_share": 0.82})
    assert find(PaddedShapes, slow(legend), settings={"minimum_share": 0.84}) == ()
    # 120 of 640 contracted terms are padding: 18.75 %.
    assert only(slow(legend), settings={"minimum_op_share": 0.187})
    assert find(PaddedShapes, slow(legend), settings={"minimum_op_share": 0.188}) == ()
    # 2 of 12 ms are saved: 16.7 %.
    assert only(slow(legend), settings={"minimum_saving": 0.166}).saving
    assert only(slow(legend), settings={"minimum_saving": 0.168}).saving is None
    # 512 is 1.54 % away.
    assert only(slow(legend), settings={"largest_change": 0.016}).saving
    assert only(slow(legend), settings={"largest_change": 0.015}).saving is None


CONVOLUTION = (
    "%convolution.1 = bf16[{0},128]{{1,0:T(8,128)(2,1)}} convolution("
    "bf16[{0},256]{{1,0:T(8,128)(2,1)}} %x, bf16[256,128]{{1,0:T(8,128)(2,1)}} %w), "
    "dim_labels=bf_io->bf"
)


@pytest.mark.usefixtures("nominal")
def test_a_larger_batch_that_takes_as_long_is_more_samples_in_the_same_time() -> None:
    finding = only(slow({"X": xla_op("convolution.1", CONVOLUTION.format(9))}))
    assert finding.saving is None
    # A unit takes 64 rows as quickly as 9.
    assert "A batch of 16 per core takes as long as 9, by the model: more samples" in (
        finding.summary
    )


def test_weights_that_take_all_the_time_leave_room_for_more_rows() -> None:
    # Compiled for a TPU7x: two layers in one fusion, on 9 rows. The weights of 2 x 33.6 MB take
    # 21.4 us at 85 % of 3.69 TB/s, and the rows next to nothing.
    weight, rows = "bf16[{},{}]{{1,0:T(8,128)(2,1)}}", "bf16[9,2048]{1,0:T(8,128)(2,1)}"
    text = (
        f"%fusion.1 = {rows} fusion({rows} %x, {weight.format(8192, 2048)} %down, "
        f"{weight.format(2048, 8192)} %up), kind=kOutput"
    )
    drawing = SLOW.replace("cell 1ms", "cell 2500ns")
    operation = {"X": xla_op("fusion.1", text, flop=2.0 * 2 * 9 * 2048 * 8192)}
    finding = only(draw(drawing, legend=operation, device="TPU7x"))
    assert finding.saving is None
    # 7 of 16 rows are empty.
    assert "43.8 % of their work is padding" in finding.summary
    assert "A batch of 16 per core takes as long as 9, by the model: more samples" in (
        finding.summary
    )


def test_a_device_that_the_model_does_not_know_is_promised_nothing() -> None:
    finding = only(slow(dot(1024, 520, 2048), "TPU v9"))
    assert finding.saving is None
    assert "is not known for this device" in finding.summary


@pytest.mark.parametrize(
    ("device", "generation"),
    [("TPU v4", "v4"), ("TPU v5 lite", "v5e"), ("TPU v5", "v5p"), ("TPU v6 lite", "v6e")],
)
def test_the_model_is_that_of_the_device(device: str, generation: str) -> None:
    costs = fitting_sizes.costs_of(reference_worker(run_of(slow(dot(8, 8, 8), device))))
    assert costs is not None
    assert costs.generation == generation
