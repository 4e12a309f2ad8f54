from __future__ import annotations

from tb_perfadvisor.rules.launch.allocator_churn import AllocatorChurn
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import host
from tb_perfadvisor.trace import EventKind, Trace
from tests.support.memory_snapshots import Snapshot, frames

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


def emptying(times: int, stack: str) -> Trace:
    """A snapshot of a loop that gives a segment back and gets it again."""
    made = Snapshot()
    frame = frames(("/venv/torch/cuda/memory.py", 222, stack), ("/p/train.py", 30, "step"))
    for _ in range(times):
        segment = made.wait(100).segment(1 << 30)
        made.allocate(segment, 1 << 30).free(segment, 1 << 30).give_back(segment, frame)
    made.segment(1 << 30)
    return made.wait(100).allocate(1 << 40, 512).trace()


def test_a_snapshot_shows_who_empties_the_cache() -> None:
    (finding,) = find(AllocatorChurn, emptying(40, "empty_cache")) or ()
    # After the first return, 39 of the loop and the last one: 40 GiB.
    assert finding.summary == (
        "The allocator gives memory back to the driver 40 times, because the program calls"
        " torch.cuda.empty_cache() (mostly at p/train.py:30 step), and gets 40.0 GiB again in 40"
        " calls. Each of them waits for the device; a profile shows for how long."
    )
    assert [remedy.change for remedy in finding.remedies] == ["keep-allocator-cache"]
    assert finding.saving is None


def test_other_returns_get_the_general_advice() -> None:
    (finding,) = find(AllocatorChurn, emptying(40, "malloc")) or ()
    assert "empty_cache()" not in finding.summary
    assert len(finding.remedies) == 3
    assert find(AllocatorChurn, emptying(9, "malloc")) == ()
