"""Also fires on XProf's table of a TPU's steps (tests/corpus)."""

from __future__ import annotations

from tb_perfadvisor.rules.input.stalls import InfeedWait
from tb_perfadvisor.testing import check_rule, find

SLOW = """
    cell 1ms
    step  |..........|..........|
    main  |L.........|L.........|
    tpu 0 |IIIIXXXXXX|IIIIXXXXXX|
"""
FIXED = """
    cell 1ms
    step  |......|......|
    main  |L.....|L.....|
    tpu 0 |XXXXXX|XXXXXX|
"""


def test_saves_what_the_fix_saves() -> None:
    # Without infeed operations the rule is not applicable.
    checked = check_rule(InfeedWait, slow=SLOW, fixed=FIXED, saves="4ms", fixed_applies=False)
    # Low is half of what overlapping hides, 2 of 4 ms, and the middle is expected.
    assert checked.expected_ns == 3_000_000


def test_just_below_and_just_above_the_limit() -> None:
    # One millisecond of twenty.
    trace = """
        cell 1ms
        step  |....................|
        main  |L...................|
        tpu 0 |IXXXXXXXXXXXXXXXXXXX|
    """
    assert find(InfeedWait, trace, settings={"minimum_share": 0.051}) == ()
    assert len(find(InfeedWait, trace, settings={"minimum_share": 0.049}) or ()) == 1


def test_a_gpu_has_no_infeed() -> None:
    trace = """
        cell 1ms
        step  |....|....|
        main  |DDo.|DDo.|
        gpu 7 |..KK|..KK|
    """
    assert find(InfeedWait, trace) is None


def test_ignores_the_infeed_of_other_cores() -> None:
    trace = """
        cell 1ms
        step  |..........|..........|
        main  |L.........|L.........|
        tpu 0 |....XXXXXX|....XXXXXX|
        tpu 1 |IIIIXXX...|IIIIXXX...|
    """
    assert find(InfeedWait, trace) == ()
