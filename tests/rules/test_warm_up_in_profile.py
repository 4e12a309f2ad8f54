from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.steps.variation import WarmUpInProfile
from tb_perfadvisor.testing import check_rule, find

SLOW = """
    cell 1ms
    step   |...........|...|...|...|
    main   |ouuuuuuuuo.|oo.|oo.|oo.|
    gpu 7  |K........KK|KKK|KKK|KKK|
"""
FIXED = """
    cell 1ms
    step   |...|...|...|
    main   |oo.|oo.|oo.|
    gpu 7  |KKK|KKK|KKK|
"""
# The context is created inside the first launch.
STARTING = """
    cell 10ms
    main   |oLLLLLLLo...|
    gpu 7  |K.......KKKK|
"""


def test_finds_a_slow_first_step() -> None:
    checked = check_rule(WarmUpInProfile, slow=SLOW, fixed=FIXED)
    (finding,) = checked.findings
    # 8 of 20 ms.
    assert finding.summary == (
        "The first step takes 11.0 ms, the others take 3.00 ms: the start of the program is 40.0 %"
        " of the profile, mostly unexplained (8.00 ms more)."
    )


def test_a_slow_later_step_is_left_alone() -> None:
    trace = """
        cell 1ms
        step   |...|...........|...|...|
        main   |oo.|ouuuuuuuuo.|oo.|oo.|
        gpu 7  |KKK|K........KK|KKK|KKK|
    """
    assert find(WarmUpInProfile, trace) == ()


def test_an_excluded_first_step_is_left_alone() -> None:
    # Only the first step compiles, so it is not used.
    trace = """
        cell 1ms
        step   |...........|...|...|...|
        main   |occcccccco.|oo.|oo.|oo.|
        gpu 7  |K........KK|KKK|KKK|KKK|
    """
    assert find(WarmUpInProfile, trace) == ()


def test_finds_long_calls_in_a_profile_without_steps() -> None:
    (finding,) = find(WarmUpInProfile, STARTING) or ()
    # The call of 70 ms ends with the gap.
    assert finding.summary.startswith(
        "1 long call of the device's runtime takes 70.0 ms of the profile (58.3 %)"
    )


def test_just_below_and_just_above_the_limits() -> None:
    assert find(WarmUpInProfile, SLOW, settings={"minimum_share": 0.41}) == ()
    assert len(find(WarmUpInProfile, SLOW, settings={"minimum_share": 0.39}) or ()) == 1
    assert find(WarmUpInProfile, STARTING, settings={"minimum_call_ns": 70_000_000}) == ()
    assert len(find(WarmUpInProfile, STARTING, settings={"minimum_call_ns": 69_000_000}) or ()) == 1


@pytest.mark.parametrize(
    ("path", "fires"),
    [
        ("hta/critical_path_alexnet", True),  # its first cudaMalloc takes 8.2 s
        ("tracelens/inference_sglang_decode", False),  # a copy that waits for the device
    ],
)
def test_recorded_profiles(corpus: Path, path: str, *, fires: bool) -> None:
    rule_ids = {finding.rule_id for finding in analyze(corpus / path).findings}
    assert ("warm-up-in-profile" in rule_ids) == fires
