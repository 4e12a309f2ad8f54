from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.precision.wide_numbers import CastOverhead
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol, kernel, operator
from tb_perfadvisor.trace import KernelFamily

# TraceLens' Qwen (H100): a copy that casts while loading; segment-anything-fast's asdf_True (A100).
LOADS = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::"
    "TensorIteratorBase&)::{lambda()#3}, std::array<char*, 2ul>, 4, at::native::memory::"
    "LoadWithCast<1>, at::native::memory::StoreWithCast<1> >"
)
TO_BF16 = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda("
    "at::TensorIteratorBase&)::{lambda(float)#1}, at::detail::Array<char*, 2> >"
)
PLAIN = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::direct"
BF16 = "c10::BFloat16"
# XProf's demonstration GPU-multi-worker: a cast of TensorFlow; with bool, it converts a mask.
EIGEN = (
    "void Eigen::internal::EigenMetaKernel<Eigen::TensorEvaluator<Eigen::TensorAssignOp<Eigen::"
    "TensorMap<Eigen::Tensor<Eigen::half, 1, 1, long>, 16, Eigen::MakePointer>, Eigen::"
    "TensorConversionOp<Eigen::half, Eigen::TensorMap<Eigen::Tensor<{} const, 1, 1, long>, 16, "
    "Eigen::MakePointer> const> const> const, Eigen::GpuDevice>, long>"
)
GENERATED = "Cast_GPU_DT_{}_DT_HALF_kernel"


def legend(name: str, dtypes: str = "float;float;Scalar") -> dict[str, Symbol]:
    return {
        "v": operator("aten::copy_", shapes="[[64,64],[64,64],[]]", dtypes=dtypes),
        "c": kernel(name, family=KernelFamily.COPY),
    }


SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |vSSSSSSSSS|vSSSSSSSSS|
    gpu 7  |ccccHHHHHH|ccccHHHHHH|
"""
FIXED = """
    cell 1ms
    step   |........|........|
    main   |oSSSSSSS|oSSSSSSS|
    gpu 7  |HHHHHHHH|HHHHHHHH|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(CastOverhead, slow=SLOW, fixed=FIXED, saves="2ms", legend=legend(TO_BF16))
    assert checked.expected_ns == 2_000_000
    (finding,) = checked.findings
    assert "40.0 % of the device's busy time" in finding.summary


@pytest.mark.parametrize(
    ("name", "dtypes", "is_cast"),
    [
        (LOADS, "float;float;Scalar", True),
        (TO_BF16, "float;float;Scalar", True),
        (PLAIN, f"{BF16};float;Scalar", True),
        (EIGEN.format("float"), "", True),
        (EIGEN.format("bool"), "", False),
        (GENERATED.format("FLOAT"), "", True),
        (GENERATED.format("BOOL"), "", False),
        (PLAIN, f"{BF16};{BF16};Scalar", False),
        (PLAIN, "float;long int;Scalar", False),  # converting integers is not a cast of precision
        (PLAIN, "", False),
    ],
)
def test_which_kernels_are_casts(name: str, dtypes: str, *, is_cast: bool) -> None:
    assert bool(find(CastOverhead, SLOW, legend=legend(name, dtypes))) == is_cast


def test_few_casts_pass() -> None:
    text = SLOW.replace("ccccHHHHHH", "cHHHHHHHHH")
    busy = {"minimum_busy_share": 0.11}
    assert find(CastOverhead, text, legend=legend(TO_BF16), settings=busy) == ()
    busy = {"minimum_busy_share": 0.09}
    assert find(CastOverhead, text, legend=legend(TO_BF16), settings=busy)
    for least, count in ((0.09, 1), (0.11, 0)):
        findings = find(
            CastOverhead, text, legend=legend(TO_BF16),
            settings={"minimum_busy_share": 0.05, "minimum_share": least},
        )  # fmt: skip
        assert findings is not None
        assert len(findings) == count


@pytest.mark.corpus
def test_finds_the_conversions_of_jax_attention(corpus: Path) -> None:
    report = analyze(corpus / "tracelens-jax/jax08_attention")
    rules = [finding.rule_id for finding in report.findings]
    (finding,) = [f for f in report.findings if f.rule_id == "cast-overhead"]
    # 41 % of 3.76 ms of device work in a step of 32.6 ms: idle time ranks higher.
    assert "40.6 % of the device's busy time" in finding.summary
    assert finding.severity == "low"
    assert rules.index("cast-overhead") > 0


def test_casts_of_tensorflow(corpus: Path) -> None:
    report = analyze(corpus / "xprof-demo/plugins/profile/GPU-multi-worker")
    (finding,) = (f for f in report.findings if f.rule_id == "cast-overhead")
    # INDEX: TensorConversionOp kernels between float and half take 3.76 ms of each step, of which
    # a hundredth overlaps copies.
    assert finding.saving is not None
    assert finding.saving.high_ns == pytest.approx(3.76e6, rel=0.02)
    assert "(295 kernels per step)" in finding.summary
