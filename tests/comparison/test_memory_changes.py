"""Two memory snapshots: what holds more at the peak, and what is gone."""

from __future__ import annotations

from tb_perfadvisor.comparison.compare import compare_facts
from tb_perfadvisor.contract.model import ComparedTarget, Comparison
from tb_perfadvisor.testing import draw
from tests.support.comparison_facts import SLOW, facts_of
from tests.support.memory_snapshots import Snapshot, frames

GIB = 1 << 30


def holding(**gib: float) -> Snapshot:
    """A snapshot in which each line holds so much."""
    made = Snapshot()
    at = made.segment(80 * GIB)
    for name, size in gib.items():
        made.allocate(at, int(size * GIB), frames((f"/p/{name}.py", 1, "forward")))
        at += int(size * GIB)
    return made


def lines(**gib: float) -> Snapshot:
    """A snapshot of one function, with what each of its lines holds: `_10=4`."""
    made = Snapshot()
    at = made.segment(80 * GIB)
    for line, size in gib.items():
        made.allocate(at, int(size * GIB), frames(("/p/net.py", int(line[1:]), "forward")))
        at += int(size * GIB)
    return made


def compared(base: Snapshot, target: Snapshot) -> tuple[Comparison, ComparedTarget]:
    comparison = compare_facts(facts_of(base.trace()), [facts_of(target.trace())])
    return comparison, comparison.targets[0]


def test_grown_new_and_gone() -> None:
    _, target = compared(
        holding(model=10, loss=4, cache=2), holding(model=16, loss=4, logits=1, tiny=0.001)
    )
    assert target.verdict == "memory"
    # 10 + 4 + 2 GiB before, 16 + 4 + 1 after: 5 of 16 are 31.3 %.
    assert target.headline == (
        "Peak memory is 21.0 GiB instead of 16.0 GiB (31.3 % more); p/model.py:1 forward holds"
        " 6.00 GiB more"
    )
    assert target.memory is not None
    rows = [(row.line, row.base_bytes, row.target_bytes) for row in target.memory.rows]
    # The loss did not change, and the tiny one holds less than a thousandth of the peak.
    assert rows == [
        ("p/model.py:1 forward", 10 * GIB, 16 * GIB),
        ("p/cache.py:1 forward", 2 * GIB, None),
        ("p/logits.py:1 forward", None, GIB),
    ]
    assert target.warnings == []


def test_less_and_the_same() -> None:
    _, target = compared(holding(model=10), holding(model=6))
    assert target.headline.startswith("Peak memory is 6.00 GiB instead of 10.0 GiB (40.0 % less)")
    _, target = compared(holding(model=10), holding(model=10))
    assert target.headline == "No clear change: peak memory is 10.0 GiB instead of 10.0 GiB"


def test_a_profile_and_a_snapshot_have_no_memory_to_compare() -> None:
    comparison = compare_facts(facts_of(draw(SLOW)), [facts_of(holding(model=10).trace())])
    assert comparison.targets[0].memory is None
    assert comparison.targets[0].verdict != "memory"


def test_lines_that_moved_are_the_same_lines() -> None:
    # Three lines were inserted above; the second line holds 2 GiB more, and the last one is gone.
    _, target = compared(lines(_10=4, _11=6, _12=1, _20=3), lines(_13=4, _14=8, _15=1))
    assert target.memory is not None
    rows = [(row.line, row.base_bytes, row.target_bytes) for row in target.memory.rows]
    assert rows == [
        ("p/net.py:20 forward", 3 * GIB, None),
        ("p/net.py:14 forward (line 11 before)", 6 * GIB, 8 * GIB),
    ]


def test_line_that_has_the_number_of_another_one_is_not_that() -> None:
    # A line that holds 1 GiB was inserted at the top of the function.
    _, target = compared(lines(_10=5, _11=7, _12=9), lines(_10=1, _11=5, _12=7, _13=9))
    assert target.memory is not None
    rows = [(row.line, row.base_bytes, row.target_bytes) for row in target.memory.rows]
    assert rows == [("p/net.py:10 forward", None, GIB)]


def test_lines_of_an_unchanged_function_stay_themselves() -> None:
    _, target = compared(lines(_10=5, _11=7), lines(_10=7, _11=5))
    assert target.memory is not None
    rows = {(row.line, row.change_bytes) for row in target.memory.rows}
    assert rows == {("p/net.py:10 forward", 2 * GIB), ("p/net.py:11 forward", -2 * GIB)}


def later(made: Snapshot) -> Snapshot:
    """The same history, a minute later."""
    for entry in made.history:
        entry["time_us"] += 60_000_000
    return made


def kept(**gib: float) -> Snapshot:
    """What each line holds at the end."""
    made = Snapshot()
    at = made.segment(80 * GIB)
    for name, size in gib.items():
        stack = frames((f"/p/{name}.py", 1, "forward"))
        made.allocate(at, int(size * GIB), stack).holds(
            at_segment(made), at, int(size * GIB), stack
        )
        at += int(size * GIB)
    return made


def at_segment(made: Snapshot) -> int:
    return next(iter(made._segments))


def test_what_a_program_keeps_between_two_snapshots_of_a_run() -> None:
    _, target = compared(kept(model=10, log=1), later(kept(model=10, log=4)))
    assert target.explanation == (
        "When the second snapshot was taken, 3.00 GiB more was allocated than when the first one"
        " was, mostly from p/log.py:1 forward (3.00 GiB more). If both are of one run, the program"
        " keeps it: keep numbers, or copies on the host, instead of tensors on the device, and"
        " limit the size of caches."
    )


def test_snapshots_that_show_no_growth_of_one_run() -> None:
    grown = kept(model=10, log=4)
    _, earlier = compared(later(kept(model=10, log=1)), grown)
    assert earlier.explanation is None
    _, another = compared(kept(model=10, log=1), later(kept(net=12, log=4)))
    assert another.explanation is None
    _, same = compared(kept(model=10, log=1), later(kept(model=10, log=1.05)))
    assert same.explanation is None
