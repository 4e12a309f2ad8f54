"""The model of matrix products, against arithmetic and published measurements."""

from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.work.roofline import most_tiles, roofline, wave_waste
from tb_perfadvisor.testing import TraceBuilder, ms, run_of, us
from tb_perfadvisor.trace import KernelFamily, Precision


@pytest.mark.parametrize(
    ("product", "waste"),
    [
        ((1, 64 * 132, 64, 64), 1.0),  # a tile of 64 x 64 for each of 132 multiprocessors
        ((1, 64 * 133, 64, 64), 264 / 133),  # two waves for one tile more
        ((2, 64 * 66, 64, 64), 1.0),  # products of a batch run together
        ((1, 4096, 4096, 64), 32 * 132 / 64**2),  # 31.03 waves take 32
        ((1, 1, 8192, 1024), 132 * 8 / 128),  # 128 tiles of 8 x 64, of which one row is used
        ((1, 64, 64, 1024), 132),  # one multiprocessor of 132 works
        ((1, 64, 64, 65536), 132 / 16),  # sixteen add up 4,096 products each
        ((0, 0, 0, 0), 132 * 64),  # no product: not used, but not infinite either
    ],
)
def test_time_in_waves_relative_to_a_device_that_is_always_busy(
    product: tuple[int, int, int, int], waste: float
) -> None:
    assert wave_waste(np.array([product]), 132)[0] == pytest.approx(waste)


def test_no_waves_are_counted_if_the_number_of_multiprocessors_is_unknown() -> None:
    assert wave_waste(np.array([[1, 4096, 4096, 64]] * 3), None).tolist() == [1.0, 1.0, 1.0]


def test_tiles_of_a_result() -> None:
    products = np.array([[1, 4096, 2048, 64], [4, 65, 8, 64]])
    assert most_tiles(products).tolist() == [64 * 32, 4 * 2]


def achievable_ns(device: str, form: str, m: int, n: int, k: int) -> float:
    dtype = {"bf16": "c10::BFloat16", "fp16": "c10::Half", "fp8": "c10::Float8_e4m3fn"}
    builder = TraceBuilder().device(device).step(0, 0, ms(40))
    builder.operator(
        "aten::_scaled_mm" if form == "fp8" else "aten::mm",
        0,
        us(10),
        shapes=[[m, k], [k, n]],
        dtypes=[dtype.get(form, "float")] * 2,
    )
    builder.kernel(
        "gemm", ms(1), ms(31), family=KernelFamily.MATMUL, precision=Precision.UNKNOWN,
        tensor_cores=1,
    )  # fmt: skip
    (time_ns,) = roofline(Signals(run_of(builder.build()))).achievable_ns
    return float(time_ns)


# S. Bekman, Machine Learning Engineering, tables of maximum achievable matmul FLOPS; and
# zzc0721/torch-performance-test-data, issues 78 and 79 (square products).
MEASURED_TFLOP_PER_S = [
    ("NVIDIA A100-SXM4-80GB", "bf16", (1024, 10240, 5120), 271.2),
    ("NVIDIA H100 80GB HBM3", "bf16", (2048, 2048, 13312), 794.5),
    ("NVIDIA H100 80GB HBM3", "bf16", (4096, 4096, 4096), 788.7),
    ("NVIDIA H100 80GB HBM3", "bf16", (8192, 8192, 8192), 797.5),
    ("NVIDIA H100 80GB HBM3", "tf32", (4096, 4096, 4096), 402.2),
    ("NVIDIA H100 80GB HBM3", "fp8", (1024, 9216, 14336), 1402.6),
    ("NVIDIA H200", "fp8", (1280, 4096, 12032), 1453.4),
    ("NVIDIA GH200 144G HBM3e", "bf16", (1024, 15360, 4096), 828.6),
    ("NVIDIA B200", "bf16", (1792, 16128, 3072), 1745.0),
    ("NVIDIA B200", "fp8", (15360, 4096, 3072), 3432.5),
    ("NVIDIA B300 SXM6 AC", "bf16", (12288, 18432, 1024), 1769.0),
    ("NVIDIA GeForce RTX 4090", "fp16", (4096, 4096, 4096), 168.4),
    ("NVIDIA GeForce RTX 4090", "tf32", (8192, 8192, 8192), 85.7),
]


@pytest.mark.parametrize(("device", "form", "sizes", "tflop_per_s"), MEASURED_TFLOP_PER_S)
def test_published_measurements(
    device: str, form: str, sizes: tuple[int, int, int], tflop_per_s: float
) -> None:
    m, n, k = sizes
    measured_ns = 2 * m * n * k / tflop_per_s / 1e3
    assert achievable_ns(device, form, m, n, k) == pytest.approx(measured_ns, rel=0.12)
