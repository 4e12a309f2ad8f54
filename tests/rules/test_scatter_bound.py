from __future__ import annotations

import pytest

from tb_perfadvisor.rules.compute.kernels import ScatterBound
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import ms, us
from tb_perfadvisor.trace import Trace

# Prefixes of kernel names in HolisticTraceAnalysis' trace_diff_control and trace_filter.
ADDING = (
    "void at::native::_scatter_gather_elementwise_kernel<128, 4, at::native::"
    "_cuda_scatter_gather_internal_kernel<true, float>::operator()<at::native::ReduceAdd>"
)
ASSIGNING = (
    "void at::native::_scatter_gather_elementwise_kernel<128, 4, at::native::"
    "_cuda_scatter_gather_internal_kernel<false, at::native::OpaqueType<4> >::operator()"
    "<at::native::TensorAssign>"
)
SORTED = (
    "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1"
    "<float, float, float, 2ul>"
)
COUNT = 100_000_000


def trace(adding_ms: float, name: str = ADDING, length_ms: float = 0) -> Trace:
    builder = TraceBuilder().device("NVIDIA A100-SXM4-80GB")
    length = ms(length_ms or adding_ms)
    for step in range(2):
        start = length * step
        builder.step(step, start, start + length)
        builder.operator(
            "aten::scatter_add_",
            start,
            start + us(50),
            shapes=[[50], [], [COUNT], [COUNT]],
            dtypes=["float", "Scalar", "long", "float"],
        )
        builder.kernel(name, start, start + ms(adding_ms))
        builder.synchronize(start + us(50), start + length)
    return builder.build()


def test_saves_what_the_fix_saves() -> None:
    # An index of 8 bytes, a value of 4, and a sum read and written: 20 bytes each, 2 GB in all. At
    # 0.85 of 2039 GB/s (NVIDIA's A100 datasheet), they take 1.15 ms.
    moved_ms = COUNT * 20 / (0.85 * 2039e9) * 1e3
    assert moved_ms == pytest.approx(1.154, abs=0.001)
    checked = check_rule(ScatterBound, slow=trace(10), fixed=trace(2), saves="8ms", scales=False)
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.saving.high_ns == pytest.approx(2 * (10 - moved_ms) * 1e6, rel=0.001)
    assert checked.expected_ns == pytest.approx((10 - moved_ms) / 2 * 1e6, rel=0.001)
    assert "9 times as long as their memory traffic needs" in finding.summary  # 10 / 1.154


@pytest.mark.parametrize("name", [ASSIGNING, SORTED])
def test_kernels_without_atomic_additions_do_not_count(name: str) -> None:
    assert find(ScatterBound, trace(10, name)) == ()


def test_fires_only_beyond_the_limits() -> None:
    def count_with(name: str, value: float) -> int:
        subject = trace(10, length_ms=20)
        return len(find(ScatterBound, subject, settings={name: value}) or ())

    assert (count_with("minimum_share", 0.49), count_with("minimum_share", 0.51)) == (1, 0)
    assert (count_with("minimum_ratio", 8.6), count_with("minimum_ratio", 8.7)) == (1, 0)
