from __future__ import annotations

from tb_perfadvisor.rules.placement.devices import HostPlacedOperators
from tb_perfadvisor.testing import check_rule, find

# `O` is an operator without a launch that computes on the host for 4 ms.
SLOW = """
    cell 1ms
    step   |........|........|
    main   |oOOOOo..|oOOOOo..|
    gpu 7  |KK...KKK|KK...KKK|
"""
FIXED = """
    cell 1ms
    step   |.....|.....|
    main   |oo...|oo...|
    gpu 7  |KKKKK|KKKKK|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        HostPlacedOperators,
        slow=SLOW,
        fixed=FIXED,
        saves="3ms",
        scales=False,  # the cost of the remaining launch does not scale with the trace
    )
    # The launch of 10 µs that replaces the operator overlaps device work.
    assert checked.expected_ns == 3_000_000


def test_operators_of_the_input_pipeline_are_left_alone() -> None:
    trace = """
        cell 1ms
        step   |........|........|
        main   |oDDDDo..|oDDDDo..|
        main   |.OOOO...|.OOOO...|
        gpu 7  |KK...KKK|KK...KKK|
    """
    assert find(HostPlacedOperators, trace) == ()


def test_shares_by_count_and_time() -> None:
    checked = check_rule(HostPlacedOperators, slow=SLOW, fixed=FIXED, saves="3ms", scales=False)
    placement = checked.signals.placement
    # Each of two steps has two operators on the device and one on the host; device work takes
    # 2 + 3 ms per step, the operator on the host takes 4 ms.
    assert placement.share_by_count == 4 / 6
    assert placement.share_by_time == 10 / 18
