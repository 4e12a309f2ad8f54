from __future__ import annotations

from tb_perfadvisor.rules.placement.host_placed_operators import HostPlacedOperators
from tb_perfadvisor.testing import check_rule, find

# `O` is an operator without any launch: it computes on the host for 4 ms.
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
        scales=False,  # the cost of the launch that remains does not grow with the trace
    )
    # The launch of 10 µs that takes the operator's place runs while the device is busy.
    assert checked.expected_ns == 3_000_000


def test_operators_of_the_input_pipeline_are_not_meant() -> None:
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
    # Two steps with two operators on the device and one on the host each; device work is
    # 2 + 3 ms a step, the host's operator 4 ms.
    assert placement.share_by_count == 4 / 6
    assert placement.share_by_time == 10 / 18
