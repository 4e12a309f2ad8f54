from __future__ import annotations

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


def test_names_what_is_far_from_what_its_work_needs() -> None:
    checked = check_rule(DominantKernel, slow=SLOW, fixed=FIXED, legend=LEGEND, device=H100)
    (finding,) = checked.findings
    assert finding.saving is None
    # All that the operator launches, 9 ms, without the 16.1 %: more than half of the step.
    assert finding.severity == "medium"
    # 2 x 8192^3 FLOP at 0.90 of 989.4 TFLOP/s take 1.24 ms in whole waves, and writing half of 134
    # MB at 0.85 of 3.352 TB/s takes 0.02. With 4 us for each of four kernels: 1.29 of 8 ms.
    assert finding.summary == (
        "9.00 ms of each step (90.0 %) goes into aten::mm, whose work needs 16.1 % of that at"
        " achievable rates (bound by compute)."
    )


def test_work_near_its_limit_passes() -> None:
    # In a fifth of the time: 1.29 ms of work in 1.6, all of it in one operator.
    assert (
        find(DominantKernel, SLOW.replace("cell 1ms", "cell 200us"), legend=LEGEND, device=H100)
        == ()
    )


def test_without_shapes_nobody_knows_what_work_needs() -> None:
    assert find(DominantKernel, SLOW, device=H100) == ()


def test_fires_only_above_the_limit() -> None:
    # 83.9 % of 90 %.
    for limit, fires in ((0.75, True), (0.76, False)):
        settings = {"minimum_share": limit}
        assert (
            bool(find(DominantKernel, SLOW, legend=LEGEND, device=H100, settings=settings)) is fires
        )
