from __future__ import annotations

from tb_perfadvisor.rules.launch.allocator_churn import AllocatorChurn
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import EventKind

SLOW = """
    cell 1ms
    step   |......|......|......|
    main   |oAAAo.|oAAAo.|oAAAo.|
    gpu 7  |K...KK|K...KK|K...KK|
"""
FIXED = """
    cell 1ms
    step   |...|...|...|
    main   |oo.|oo.|oo.|
    gpu 7  |KKK|KKK|KKK|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(AllocatorChurn, slow=SLOW, fixed=FIXED, saves="3ms")
    (finding,) = checked.findings
    assert finding.summary.endswith("3 of 3 steps do, with 1 call per step.")
    assert "expandable_segments" in finding.remedies[0].snippet


def test_filling_the_cache_once_is_not_churn() -> None:
    trace = """
        cell 1ms
        step   |......|...|...|
        main   |oAAAo.|oo.|oo.|
        gpu 7  |K...KK|KKK|KKK|
    """
    assert find(AllocatorChurn, trace) == ()


def test_allocations_mostly_in_one_step_are_left_alone() -> None:
    # 6 of 8 ms in one of three steps.
    trace = """
        cell 1ms
        step   |.........|....|....|
        main   |oAAAAAAo.|oAo.|oAo.|
        gpu 7  |K......KK|K.KK|K.KK|
    """
    assert find(AllocatorChurn, trace) == ()


def test_allocations_that_overlap_device_work_cost_nothing() -> None:
    trace = """
        cell 1ms
        step   |......|......|
        main   |oAAAo.|oAAAo.|
        gpu 7  |KKKKKK|KKKKKK|
    """
    assert find(AllocatorChurn, trace) == ()


def test_the_remedy_fits_the_calls() -> None:
    frees = {"A": host("cudaFree", EventKind.ALLOCATE)}
    (finding,) = find(AllocatorChurn, SLOW, legend=frees) or ()
    assert "empty_cache" in finding.remedies[0].text
    pinned = {"A": host("cudaHostAlloc", EventKind.ALLOCATE)}
    (finding,) = find(AllocatorChurn, SLOW, legend=pinned) or ()
    assert "pin_memory" in finding.remedies[0].snippet


def test_just_below_and_just_above_the_limit() -> None:
    assert find(AllocatorChurn, SLOW, settings={"minimum_share": 0.51}) == ()
    assert len(find(AllocatorChurn, SLOW, settings={"minimum_share": 0.49}) or ()) == 1
