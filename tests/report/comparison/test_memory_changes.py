"""Two memory snapshots: what holds more at the peak, and what is gone."""

from __future__ import annotations

from tb_perfadvisor.report.comparison import compare_facts
from tb_perfadvisor.report.comparison.model import ComparedTarget, Comparison
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
        "Peak memory 21.0 GiB instead of 16.0 GiB (31.3 % more); p/model.py:1 forward holds"
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
    assert target.headline.startswith("Peak memory 6.00 GiB instead of 10.0 GiB (40.0 % less)")
    _, target = compared(holding(model=10), holding(model=10))
    assert target.headline == "Peak memory 10.0 GiB instead of 10.0 GiB: no clear change"


def test_a_profile_and_a_snapshot_have_no_memory_to_compare() -> None:
    comparison = compare_facts(facts_of(draw(SLOW)), [facts_of(holding(model=10).trace())])
    assert comparison.targets[0].memory is None
    assert comparison.targets[0].verdict != "memory"
