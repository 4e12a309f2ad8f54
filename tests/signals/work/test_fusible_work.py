from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.work.fusible_work import fusible_work
from tb_perfadvisor.testing import TraceBuilder, run_of
from tb_perfadvisor.testing.builder import ms, us
from tb_perfadvisor.trace import KernelFamily

# Prefixes of kernel names in TraceLens' recording of Qwen1.5 on an H100.
VECTORIZED = "void at::native::vectorized_elementwise_kernel<4, at::native::"
UNARY = f"{VECTORIZED}silu_kernel(at::TensorIteratorBase&), std::array<char*, 2ul> >"
BINARY = f"{VECTORIZED}CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >"
PRODUCT = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
SHAPE = [4096, 4096]


def signals_of(*kernels: tuple[str, float], shapes: bool = False, steps: int = 1) -> Signals:
    """A device that runs kernels of some milliseconds, with or without the operators' shapes."""
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3")
    start = 0
    for step in range(steps):
        begin = start
        for place, (name, duration) in enumerate(kernels):
            key, at = f"{step}:{place}", begin + us(10 * place)
            inputs = [SHAPE] * (2 if name == BINARY else 1)
            if shapes:
                operator = "aten::add" if name == BINARY else "aten::silu"
                types = ["float"] * len(inputs)
                builder.operator(operator, at, at + us(10), shapes=inputs, dtypes=types, key=key)
            family = KernelFamily.MATMUL if name == PRODUCT else KernelFamily.ELEMENTWISE
            builder.kernel(
                name, start, start + ms(duration), family=family, launched_by=key if shapes else ""
            )
            start += ms(duration)
        start = max(start, begin + us(10 * len(kernels)))
        builder.step(step, begin, start)
    return Signals(run_of(builder.build()))


def test_names_and_times_stand_for_missing_shapes() -> None:
    # Both move two and three tensors, 1 ms each. Fused: two reads, or one, and a write.
    work = fusible_work(signals_of((UNARY, 2), (BINARY, 3)))
    assert work.by_time.tolist() == [True]
    assert work.most_share[0] == pytest.approx(3 / 5)
    assert work.least_share[0] == pytest.approx(2 / 5)
    assert work.expected_share[0] == pytest.approx(2.5 / 5)


def test_shapes_and_times_agree() -> None:
    by_shape = fusible_work(signals_of((UNARY, 2), (BINARY, 3), shapes=True))
    by_time = fusible_work(signals_of((UNARY, 2), (BINARY, 3)))
    assert by_shape.by_time.tolist() == [False]
    assert by_shape.most_share == pytest.approx(by_time.most_share)


def test_products_end_a_kernel_where_shapes_are_missing() -> None:
    assert len(fusible_work(signals_of((UNARY, 2), (PRODUCT, 1), (UNARY, 2))).rows) == 0


def test_kernels_of_other_libraries_are_left_alone() -> None:
    compiled = "triton_poi_fused__unsafe_view_mul_silu_2"
    assert len(fusible_work(signals_of((compiled, 2), (compiled, 2))).rows) == 0


def test_nothing_gets_more_than_twice_as_fast_per_byte() -> None:
    # 4096 x 4096 numbers of 4 bytes in 10 ms: far from any limit of the memory.
    work = fusible_work(signals_of((UNARY, 10), (UNARY, 10), shapes=True))
    # Half of the bytes remain, at most twice as fast.
    assert work.least_share[0] == pytest.approx(1 / 4)
    assert work.most_share[0] == pytest.approx(1 / 2)


def test_tiny_kernels_still_take_the_time_of_a_start() -> None:
    work = fusible_work(signals_of((UNARY, 0.002), (UNARY, 0.002), shapes=True))
    assert work.least_share[0] >= 0.5


def test_each_step_has_kernels_of_its_own() -> None:
    work = fusible_work(signals_of((UNARY, 2), (BINARY, 3), shapes=True, steps=3))
    assert work.operators.tolist() == [2, 2, 2]
    assert work.kernel.tolist() == [0, 0, 1, 1, 2, 2]


def test_updates_of_all_parameters_are_no_part_of_the_model() -> None:
    # A foreach optimizer's kernels, from an export without operators: each works on another list.
    of_lists = (
        "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::"
        "TensorListMetadata<(int)1>, at::native::<unnamed>::UnaryOpFunctor<float, (int)1, (int)1, "
        "(int)0>, at::native::Sqrt<float>>(T1, T2, T3...)"
    )
    assert len(fusible_work(signals_of((of_lists, 2), (of_lists, 2))).rows) == 0
    assert len(fusible_work(signals_of((UNARY, 2), (UNARY, 2), (of_lists, 2))).rows) == 2
