from __future__ import annotations

from tb_perfadvisor.rules.communication.late_gradient_bucket import LateGradientBucket
from tb_perfadvisor.testing import check_rule, draw, find, run_of
from tb_perfadvisor.trace import Run

SLOW = """
    cell 1ms
    step   |............|............|
    main   |o'SSSSSSSSSS|o'SSSSSSSSSS|
    gpu 7  |KKKKKKKK....|KKKKKKKK....|
    gpu 13 |...NNNN.NNNN|...NNNN.NNNN|
"""
FIXED = """
    cell 1ms
    step   |..........|..........|
    main   |o'SSSSSSSS|o'SSSSSSSS|
    gpu 7  |KKKKKKKK..|KKKKKKKK..|
    gpu 13 |..NNNNNNNN|..NNNNNNNN|
"""


def two_ranks(text: str) -> Run:
    return run_of(*(draw(text, rank=rank, world_size=2, backend="nccl") for rank in (0, 1)))


def test_saves_what_the_fix_saves() -> None:
    # 4 ms are exposed: at most 3.6 ms can go, and half of that is expected.
    checked = check_rule(
        LateGradientBucket, slow=two_ranks(SLOW), fixed=two_ranks(FIXED), saves="2ms", exactly=False
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.saving.high_ns == 2 * 3_600_000


def test_passes_if_other_all_reduces_are_exposed_too() -> None:
    exposed = """
        cell 1ms
        step   |............|............|
        main   |o'SSSSSSSSSS|o'SSSSSSSSSS|
        gpu 7  |KKK.........|KKK.........|
        gpu 13 |...NNNN.N.NN|...NNNN.N.NN|
    """
    assert find(LateGradientBucket, two_ranks(exposed)) == ()


def test_a_single_all_reduce_per_step_passes() -> None:
    single = SLOW.replace("...NNNN.NNNN", "........NNNN")
    assert find(LateGradientBucket, two_ranks(single)) == ()
