from __future__ import annotations

from tb_perfadvisor.rules.launch.launch_bound import LaunchBound
from tb_perfadvisor.testing import check_rule, find

SLOW = """
    cell 10us
    step   |..........|..........|
    main   |o.o.o.o.o.|o.o.o.o.o.|
    gpu 7  |.K.K.K.K.K|.K.K.K.K.K|
"""
# One launch, early enough that the device never waits (a CUDA graph).
FIXED = """
    cell 10us
    step   |.....|.....|
    main   |L....|L....|
    gpu 7  |KKKKK|KKKKK|
"""


def test_saves_what_the_fix_saves() -> None:
    check_rule(LaunchBound, slow=SLOW, fixed=FIXED, saves="50us")


def test_queued_work_is_not_launch_bound() -> None:
    # All kernels were launched at the beginning; the gaps between them are the device's own.
    trace = """
        cell 10us
        step   |..............|
        main   |L.............|
        gpu 7  |K...KK....KKKK|
    """
    launches = {("gpu 7", 1): ("main", 0), ("gpu 7", 2): ("main", 0)}
    assert find(LaunchBound, trace, links=launches) == ()


def test_idle_that_a_wait_induces_belongs_to_the_wait() -> None:
    # The host waits 4 cells for the device; the idle cell after it is the wait's.
    trace = """
        cell 10us
        step   |.........|.........|
        main   |oSSSo....|oSSSo....|
        gpu 7  |KKKK.KKKK|KKKK.KKKK|
    """
    assert find(LaunchBound, trace) == ()


def test_just_below_and_just_above_the_limit() -> None:
    # Half of the step is idle for want of a launch.
    assert find(LaunchBound, SLOW, settings={"minimum_share": 0.51}) == ()
    assert len(find(LaunchBound, SLOW, settings={"minimum_share": 0.49}) or ()) == 1


def test_a_long_stretch_of_python_is_no_cost_of_a_launch() -> None:
    # 30 µs of Python before each kernel: counted while gaps may be that long, not below.
    trace = """
        cell 10us
        step   |......|......|
        main   |pppo..|pppo..|
        gpu 7  |...KKK|...KKK|
    """
    (finding,) = find(LaunchBound, trace, settings={"longest_gap_ns": 31_000}) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 60_000
    assert find(LaunchBound, trace, settings={"longest_gap_ns": 29_000}) == ()
