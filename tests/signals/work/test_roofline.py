from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tb_perfadvisor import load
from tb_perfadvisor.hardware import find_device
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.work.roofline import (
    BOUNDS,
    MATRIX_FAMILIES,
    MIN_KERNEL_NS,
    NUMBER_FORMATS,
    Roofline,
    roofline,
)
from tb_perfadvisor.testing import TraceBuilder, ms, run_of, us
from tb_perfadvisor.trace import CopyDirection, EventKind, KernelFamily, Precision, Trace

H100 = "NVIDIA H100 80GB HBM3"
# NVIDIA, H100 data sheet, SXM5: dense bf16 and tf32 (half of the values printed, which are with
# sparsity), fp32 without tensor cores, memory bandwidth.
BF16, TF32, FP32, BANDWIDTH = 989.4e12, 494.7e12, 66.9e12, 3.35e12
# S. Bekman measured 795 of 989 TFLOP/s for a bf16 product: 0.90 while it computes.
REACHED = 0.90
MATMUL = KernelFamily.MATMUL
BIG = [[8192, 4096], [4096, 8192]]
BIG_FLOP = 2 * 8192 * 8192 * 4096
# 128 x 128 tiles of 64 x 64 keep 132 multiprocessors busy for 124.1 waves, which take 125.
WAVES = 125 * 132 / 128**2


def big_ns(peak: float, item_bytes: int) -> float:
    """4 us; 125 waves while operands are read and half of the result is written; then the rest."""
    compute_s = BIG_FLOP / (peak * REACHED) * WAVES
    reads_s = 2 * 8192 * 4096 * item_bytes / (BANDWIDTH * 0.85)
    half_s = 8192 * 8192 * item_bytes / 2 / (BANDWIDTH * 0.85)
    return (4e-6 + math.hypot(compute_s, reads_s + half_s) + half_s) * 1e9


SGEMM = "ampere_sgemm_128x64_nn"


def built(builder: TraceBuilder) -> tuple[Trace, Roofline]:
    signals = Signals(run_of(builder.build()))
    return signals.trace, roofline(signals)


def product(dtype: str, tensor_cores: int, *, device: str = H100) -> Roofline:
    builder = TraceBuilder().device(device).step(0, 0, ms(20))
    builder.operator("aten::mm", 0, us(10), shapes=BIG, dtypes=[dtype, dtype])
    builder.kernel(SGEMM, ms(1), ms(11), family=MATMUL, tensor_cores=tensor_cores)
    return built(builder)[1]


@pytest.mark.parametrize(
    ("dtype", "tensor_cores", "number_format", "expected_ns"),
    [
        ("c10::BFloat16", 1, "bf16", big_ns(BF16, 2)),
        ("c10::BFloat16", -1, "bf16", big_ns(BF16, 2)),
        ("float", 1, "tf32", big_ns(TF32, 4)),
        ("float", 0, "fp32", big_ns(FP32, 4)),
    ],
)
def test_a_product_is_bounded_by_the_peak_of_its_number_format(
    dtype: str, tensor_cores: int, number_format: str, expected_ns: float
) -> None:
    rooflines = product(dtype, tensor_cores)
    assert rooflines.flop.tolist() == [BIG_FLOP]
    assert NUMBER_FORMATS[rooflines.number_format[0]] == number_format
    assert rooflines.achievable_ns[0] == pytest.approx(expected_ns, rel=1e-3)
    assert BOUNDS[int(rooflines.bound[0])] == "compute"
    assert rooflines.sizes_of(np.arange(1)).tolist() == [[1, 8192, 8192, 4096]]


def test_achievable_time_in_another_number_format() -> None:
    rooflines = product("float", 0)
    spec = find_device(H100)
    assert spec is not None
    then_ns = rooflines.achievable_in("bf16", spec.peaks)[0]
    assert then_ns == pytest.approx(big_ns(BF16, 2), rel=1e-3)


def test_unknown_without_peaks_shapes_or_number_format() -> None:
    unknown = product("float", 0, device="A device nobody knows")
    assert unknown.flop.tolist() == [BIG_FLOP]  # work is known, but not the time
    assert np.isnan(unknown.achievable_ns).all()
    assert np.isnan(product("float", -1).achievable_ns).all()  # tf32 or fp32?
    builder = TraceBuilder().device(H100).step(0, 0, ms(20)).operator("aten::mm", 0, us(10))
    _, bare = built(builder.kernel(SGEMM, ms(1), ms(11), family=MATMUL, tensor_cores=0))
    assert np.isnan(bare.flop).all()
    assert bare.bound.tolist() == [-1]


def test_elementwise_work_is_memory_bound() -> None:
    builder = TraceBuilder().device(H100).step(0, 0, ms(2))
    builder.operator("aten::add", 0, us(10), shapes=[[64, 2**20]] * 2, dtypes=["float"] * 2)
    builder.kernel(
        "vectorized_elementwise_kernel", us(20), us(520), family=KernelFamily.ELEMENTWISE
    )
    trace, rooflines = built(builder)
    moved = 3 * 4 * 64 * 2**20
    assert rooflines.traffic_bytes.tolist() == [moved]
    assert BOUNDS[int(rooflines.bound[0])] == "memory"
    assert rooflines.achieved_share(trace)[0] == pytest.approx(
        moved / BANDWIDTH / 0.85 / 500e-6, rel=1e-3
    )


def test_no_kernel_is_faster_than_the_minimum() -> None:
    builder = TraceBuilder().device(H100).step(0, 0, ms(2))
    builder.operator("aten::add", 0, us(10), shapes=[[64], [64]], dtypes=["float"] * 2)
    builder.kernel("vectorized_elementwise_kernel", us(20), us(23), family=KernelFamily.ELEMENTWISE)
    _, rooflines = built(builder)
    assert rooflines.achievable_ns.tolist() == [MIN_KERNEL_NS]
    assert BOUNDS[int(rooflines.bound[0])] == "latency"


def test_kernels_of_one_execution_share_its_work() -> None:
    builder = TraceBuilder().device(H100).step(0, 0, ms(20))
    builder.operator("aten::mm", 0, us(10), shapes=BIG, dtypes=["float"] * 2)
    names = [("transposeNCHW", KernelFamily.LAYOUT), (SGEMM, MATMUL), ("splitKreduce", MATMUL)]
    for at, (name, family) in enumerate(names):
        length = 3 if name == SGEMM else 1
        builder.kernel(name, ms(1 + 4 * at), ms(1 + 4 * at + length), family=family, tensor_cores=0)
    _, rooflines = built(builder)
    assert np.isnan(rooflines.flop[0])  # a layout conversion multiplies nothing
    assert rooflines.flop[1:].tolist() == [BIG_FLOP * 3 / 4, BIG_FLOP / 4]
    assert (rooflines.operator[1:] == rooflines.operator[1]).all()


def test_old_forward_convolutions_get_their_work_from_the_backward_pass() -> None:
    x, weight, grad = [32, 3, 224, 224], [64, 3, 7, 7], [32, 64, 112, 112]
    builder = TraceBuilder().device(H100).step(0, 0, ms(40))
    builder.operator("aten::conv2d", 0, us(30), launches=False, key="forward")
    builder.operator(
        "aten::cudnn_convolution", us(5), us(25), shapes=[x, weight], dtypes=["float"] * 2
    )
    family = KernelFamily.CONVOLUTION
    builder.kernel("volta_scudnn_128x64_relu", ms(1), ms(3), family=family, tensor_cores=0)
    builder.operator(
        "CudnnConvolutionBackward", ms(4), ms(4) + us(90), launches=False, forward="forward"
    )
    builder.operator(
        "aten::cudnn_convolution_backward", ms(4) + us(5), ms(4) + us(80), launches=False,
        shapes=[x, grad, weight], dtypes=["float"] * 3,
    )  # fmt: skip
    for at, name in enumerate(("input", "weight")):
        start = ms(4) + us(10 + 30 * at)
        builder.operator(f"aten::cudnn_convolution_backward_{name}", start, start + us(20))
        builder.kernel(
            "dgrad_engine", ms(5 + 4 * at), ms(5 + 4 * at + 1), family=family, tensor_cores=0
        )
    _, rooflines = built(builder)
    flop = 2 * (32 * 64 * 112 * 112) * (3 * 7 * 7)
    assert rooflines.flop.tolist() == [flop, flop, flop]  # both gradients took as long


def test_copies_within_the_device_read_and_write() -> None:
    builder = TraceBuilder().device(H100).step(0, 0, ms(2)).launch(0, us(5))
    builder.copy(CopyDirection.DEVICE_TO_DEVICE, us(20), us(60), size_bytes=10**7)
    builder.copy(CopyDirection.HOST_TO_DEVICE, us(80), us(90), size_bytes=10**7)
    _, rooflines = built(builder)
    assert rooflines.traffic_bytes[0] == 2e7
    assert np.isnan(rooflines.traffic_bytes[1])  # this one uses the link, not device memory


def test_a_tpu_profile_records_work_itself() -> None:
    builder = TraceBuilder("jax").device("TPU v5 lite", kind="tpu").step(0, 0, ms(20))
    builder.xla_op(
        "fusion.1", ms(1), ms(9), text="%fusion.1 = bf16[8,8]{1,0} fusion()", family=MATMUL,
        precision=Precision.BITS_16, flop=197e12 * 2e-3, traffic_bytes=1e6,
    )  # fmt: skip
    _, rooflines = built(builder)
    spec = find_device("TPU v5 lite")
    assert spec is not None
    # Google Cloud, TPU v5e: 197 TFLOP/s in bf16, so this takes two milliseconds.
    assert rooflines.achievable_ns[0] == pytest.approx(2e6 / spec.peaks.achievable)


def test_without_a_device_there_are_no_rows() -> None:
    signals = Signals(run_of(TraceBuilder().operator("aten::mm", 0, ms(1)).build()))
    assert len(roofline(signals).rows) == 0


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("path", "known_share"),
    [
        ("kineto/resnet50_num_workers_4", 0.95),
        ("tracelens/h100/Falconsai_nsfw_image_detection", 0.95),
        ("tracelens/h100/facebook_timesformer-base-finetuned-k400", 0.95),
        ("tracelens/torch_compile_triton", 0.95),
        ("tracelens/inference_xdit_sd_3.5", 0.95),
        ("sam-fast/asdf_False_a73da0d1", 0.9),
    ],
)
def test_recorded_kernels_stay_below_the_roofline(
    corpus: Path, path: str, known_share: float
) -> None:
    (run,) = load(corpus / path)
    signals = Signals(run)
    trace, rooflines = signals.trace, roofline(signals)
    is_kernel = trace.events.kind[rooflines.rows] == EventKind.KERNEL
    duration_ns = trace.events.duration_ns[rooflines.rows]
    known = is_kernel & ~np.isnan(rooflines.achievable_ns)
    assert duration_ns[known].sum() >= known_share * duration_ns[is_kernel].sum()
    # Algorithms with fewer multiplications (Winograd, Fourier) and data in caches beat the
    # roofline, but other large matrix kernels do not.
    family = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)
    is_product = np.isin(family[rooflines.rows], MATRIX_FAMILIES)
    names = np.array([trace.name(int(row)) for row in rooflines.rows])
    is_fast_algorithm = (np.char.find(names, "winograd") >= 0) | (
        np.char.find(names, "gcgemm") >= 0
    )
    is_plain = ~np.isin(rooflines.operator, rooflines.operator[is_fast_algorithm])
    large = known & is_product & is_plain & (duration_ns > 100_000)
    share = rooflines.achieved_share(trace)
    facts = signals.device_facts
    assert facts is not None
    assert facts.peaks is not None
    is_other = large & ~rooflines.is_product
    assert (share[is_other] * facts.peaks.achievable).max(initial=0.0) < 1.02
    assert share[large & rooflines.is_product].max(initial=0.0) < 1.2
