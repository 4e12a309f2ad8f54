from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.compute.kernels import RandomNumberKernels
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import kernel
from tb_perfadvisor.trace import KernelFamily

# XProf's demonstration GPU-multi-worker (V100); TraceLens' xDiT (MI300).
TENSORFLOW = (
    "void tensorflow::functor::FillPhiloxRandomKernelLaunch<tensorflow::random::"
    "UniformDistribution<tensorflow::random::PhiloxRandom, Eigen::half> >(unsigned long long const*"
)
PYTORCH = (
    "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4,"
    " at::native::templates::cuda::normal_and_transform<c10::BFloat16, float"
)
# PyTorch's dropout draws in the kernel that drops.
FUSED = (
    "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int"
)

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |oooSSSSSSS|oooSSSSSSS|
    gpu 7  |rrrrHHHHHH|rrrrHHHHHH|
"""
FIXED = """
    cell 1ms
    step   |........|........|
    main   |ooSSSSSS|ooSSSSSS|
    gpu 7  |HHHHHHHH|HHHHHHHH|
"""


def legend(name: str) -> dict[str, object]:
    return {"r": kernel(name, family=KernelFamily.RANDOM)}


@pytest.mark.parametrize("name", [TENSORFLOW, PYTORCH])
def test_saves_what_the_fix_saves(name: str) -> None:
    # Half of the 4 ms are still needed to draw.
    checked = check_rule(
        RandomNumberKernels, slow=SLOW, fixed=FIXED, saves="2ms", legend=legend(name)
    )
    (finding,) = checked.findings
    assert finding.summary == (
        "4.00 ms of each step (40.0 %) goes into drawing random numbers (1 kernel per step), which"
        " other kernels then read."
    )


def test_a_kernel_that_draws_and_drops_is_no_finding() -> None:
    assert find(RandomNumberKernels, SLOW, legend=legend(FUSED)) == ()


def test_just_below_and_just_above_the_limit() -> None:
    symbols = legend(PYTORCH)
    assert find(RandomNumberKernels, SLOW, settings={"minimum_share": 0.41}, legend=symbols) == ()
    assert find(RandomNumberKernels, SLOW, settings={"minimum_share": 0.39}, legend=symbols)


def test_dropout_masks_of_bert_on_eight_gpus(corpus: Path) -> None:
    report = analyze(corpus / "xprof-demo/plugins/profile/GPU-multi-worker")
    (finding,) = (f for f in report.findings if f.rule_id == "random-number-kernels")
    # INDEX: FillPhiloxRandom takes 3.95 ms of each step of 21.3 ms.
    assert finding.saving is not None
    assert finding.saving.high_ns == pytest.approx(3.95e6, rel=0.02)
    assert finding.remedies[0].text.startswith("Let XLA compile the step")
