from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.compute.kernels import DominantKernel
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import operator

H100 = "NVIDIA H100 80GB HBM3"
LEGEND = {
    "v": operator(
        "aten::mm", shapes="[[8192,8192],[8192,8192]]", dtypes="c10::BFloat16;c10::BFloat16"
    )
}
SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |vSSSSSSSSS|vSSSSSSSSS|
    gpu 7  |HH'HH'HH.k|HH'HH'HH.k|
"""
FIXED = """
    cell 1ms
    step   |..........|..........|
    main   |vSSSSSSSSS|vSSSSSSSSS|
    gpu 7  |HH.......k|HH.......k|
"""


def test_names_the_kernel_and_its_place_on_the_roofline() -> None:
    checked = check_rule(DominantKernel, slow=SLOW, fixed=FIXED, legend=LEGEND, device=H100)
    (finding,) = checked.findings
    assert (finding.saving, finding.severity) == (None, "low")
    assert "8.00 ms of each step (80.0 %) goes into one kernel, sm90_xmma" in finding.summary
    # 2 x 8192^3 FLOP at 0.90 of 989.4 TFLOP/s take 1.24 ms in whole waves, and writing half of 134
    # MB at 0.85 of 3.352 TB/s takes 0.02. With 4 us for each of four kernels: 1.29 of 8 ms.
    assert "reaches 16.1 % of its achievable rate (bound by compute)" in finding.summary


def test_no_kernel_is_faster_than_its_work_allows() -> None:
    # In a twentieth of the time: 1.29 ms of work in 0.4.
    fast = SLOW.replace("cell 1ms", "cell 50us")
    (finding,) = find(DominantKernel, fast, legend=LEGEND, device=H100) or ()
    assert "which is as fast as its work allows (bound by compute)" in finding.summary


def test_roofline_is_unknown_without_shapes() -> None:
    (finding,) = find(DominantKernel, SLOW, device=H100) or ()
    assert "reaches" not in finding.summary


def test_programs_with_a_single_kernel_pass() -> None:
    assert find(DominantKernel, SLOW.replace("k", ".")) == ()


def test_fires_only_above_the_limit() -> None:
    assert find(DominantKernel, SLOW, settings={"minimum_share": 0.79})
    assert find(DominantKernel, SLOW, settings={"minimum_share": 0.81}) == ()


@pytest.mark.corpus
def test_finds_the_expert_gather(corpus: Path) -> None:
    report = analyze(corpus / "tracelens/eval_moe_nv/moe_05_large_capacity")
    (finding,) = [f for f in report.findings if f.rule_id == "dominant-kernel"]
    assert "vectorized_gather_kernel" in finding.summary
