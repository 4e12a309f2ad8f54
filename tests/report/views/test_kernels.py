from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tb_perfadvisor import load
from tb_perfadvisor.report.views.kernels import KernelsView, make_kernels_view
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of, us
from tb_perfadvisor.trace import EventKind, KernelFamily, Precision

H100 = "NVIDIA H100 80GB HBM3"
BF16 = "c10::BFloat16"


def view_of(builder: TraceBuilder) -> KernelsView:
    view = make_kernels_view(Signals(run_of(builder.build())))
    assert view is not None
    return view


def two_products(device: str = H100) -> TraceBuilder:
    builder = TraceBuilder().device(device).step(0, 0, ms(4))
    for at in (0, 2):
        shapes = [[4096, 4096], [4096, 4096]]
        builder.operator("aten::mm", ms(at), ms(at) + us(9), shapes=shapes, dtypes=[BF16] * 2)
        builder.kernel(
            "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN", ms(at) + us(10), ms(at) + us(260),
            family=KernelFamily.MATMUL, precision=Precision.BITS_16, tensor_cores=1,
            occupancy_share=0.25,
        )  # fmt: skip
    builder.launch(ms(3), ms(3) + us(2))
    return builder.kernel("triton_poi_fused_0", ms(3) + us(5), ms(3) + us(105))


def test_one_point_per_problem_size() -> None:
    view = view_of(two_products())
    product, other = view.points
    flop = 2 * (2 * 4096**3)
    assert (product.count, product.total_ns, product.operator) == (2, 500_000, "aten::mm")
    assert (product.product, product.format) == ([1, 4096, 4096, 4096], "bf16")
    assert (product.tensor_cores, product.family, product.bound) == (True, "matmul", "compute")
    assert product.flop == flop
    assert product.flop_per_s == pytest.approx(flop / 500e-6)
    assert product.flop_per_byte == pytest.approx(4096 / 3)  # 2n^3 over three times 2n^2 bytes
    # Of 250 us, 172 are achievable: see tests/rules/test_slow_matmul.py.
    assert product.achieved_share == pytest.approx(171.8 / 250, rel=2e-3)
    assert product.occupancy_share == pytest.approx(0.25)
    assert (other.count, other.operator, other.flop, other.bound) == (1, None, None, None)
    assert other.share == pytest.approx(1 / 6)
    assert view.known_share == pytest.approx(5 / 6)


@pytest.mark.parametrize(("duration_us", "is_possible"), [(30, True), (28, False)])
def test_a_rate_above_the_peak_is_unknown(duration_us: int, is_possible: bool) -> None:
    # 3 x 4096^2 values of 2 bytes are 100.7 MB, which an H100 moves in 30.05 us at 3.35 TB/s.
    shapes = [[4096, 4096], [4096, 4096]]
    builder = TraceBuilder().device(H100).step(0, 0, ms(1))
    builder.operator("aten::mul", 0, us(9), shapes=shapes, dtypes=[BF16] * 2)
    builder.kernel(
        "void at::native::vectorized_elementwise_kernel", us(10), us(10) + us(duration_us) + 100,
        family=KernelFamily.ELEMENTWISE,
    )  # fmt: skip
    (point,) = view_of(builder).points
    assert point.flop == 4096**2
    assert (point.bytes_per_s is not None) == is_possible
    assert point.bound == ("memory" if is_possible else None)
    # At achievable rates it takes longer than 30.1 us, so it reaches all of them.
    assert point.achieved_share == (1.0 if is_possible else None)


def test_kernels_by_family_operator_and_module() -> None:
    builder = two_products()
    builder.host(EventKind.PYTHON, "nn.Module: Linear_0", 0, us(9))
    view = view_of(builder)
    # Two products of 250 us, the first one in the module, and 100 us of another kernel.
    assert [
        (group.name, group.kernels, group.count, group.total_ns) for group in view.families
    ] == [
        ("matmul", 1, 2, us(500)),
        ("other", 1, 1, us(100)),
    ]
    assert [(group.name, group.total_ns) for group in view.operators] == [
        ("aten::mm", us(500)),
        (None, us(100)),
    ]
    assert [(group.name, group.total_ns) for group in view.modules] == [
        (None, us(350)),
        ("Linear_0", us(250)),
    ]
    assert view.families[0].share == pytest.approx(5 / 6)


def test_without_modules_there_are_no_groups_of_them() -> None:
    assert view_of(two_products()).modules == []


def test_the_longest_execution_of_a_kernel() -> None:
    builder = TraceBuilder().device(H100).step(0, 0, ms(4))
    for at, length in ((0, 100), (1, 300), (2, 200)):
        builder.launch(ms(at), ms(at) + us(2))
        builder.kernel("triton_poi_fused_0", ms(at) + us(5), ms(at) + us(5 + length))
    (point,) = view_of(builder).points
    assert (point.longest_start_ns, point.longest_ns) == (ms(1) + us(5), us(300))


def test_the_roofs_of_the_device() -> None:
    view = view_of(two_products())
    roofs = {roof.format: roof for roof in view.roofs}
    assert roofs["bf16"].peak_flop_per_s == pytest.approx(989.4e12)
    assert roofs["bf16"].achievable_flop_per_s == pytest.approx(0.90 * 989.4e12)
    assert roofs["fp32"].peak_flop_per_s == pytest.approx(66.9e12)  # without tensor cores
    assert view.peak_bytes_per_s == pytest.approx(3.35e12, rel=1e-3)


def test_without_peaks_there_are_no_roofs() -> None:
    view = view_of(two_products("A device nobody knows"))
    assert (view.roofs, view.peak_bytes_per_s) == ([], None)
    assert view.points[0].flop == 2 * 2 * 4096**3
    assert view.points[0].achieved_share is None


def test_no_view_without_kernels() -> None:
    trace = draw("""
        cell 1ms
        step   |....|....|
        main   |OOOO|OOOO|
    """)
    assert make_kernels_view(Signals(run_of(trace))) is None


@pytest.mark.corpus
def test_a_vision_transformer(corpus: Path) -> None:
    (run,) = load(corpus / "tracelens/h100/Falconsai_nsfw_image_detection")
    view = make_kernels_view(Signals(run))
    assert view is not None
    assert view.known_share > 0.95
    assert view.truncated == 0
    # TraceLens' own summary of the same kernels.
    (summary,) = corpus.glob("expected/tracelens/h100/Falconsai*/kernel_summary.csv")
    with summary.open(encoding="utf-8") as lines:
        wanted = sum(
            float(row["Percent of kernels time (%)"])
            for row in csv.DictReader(lines)
            if row["Parent cpu_op"] == "aten::addmm"
        )
    products = [point.share for point in view.points if point.operator == "aten::addmm"]
    assert 100 * sum(products) == pytest.approx(wanted, abs=0.1)
