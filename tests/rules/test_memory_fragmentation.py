from __future__ import annotations

import pytest

from tb_perfadvisor.rules.finding import MemorySaving
from tb_perfadvisor.rules.memory.allocations import MemoryFragmentation
from tb_perfadvisor.signals import Options
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, ms
from tb_perfadvisor.trace import Trace
from tests.support.memory_snapshots import Snapshot

GIB = 1 << 30


def training(*course: tuple[float, float]) -> Trace:
    """A step on a device of 80 GiB; totals allocated and reserved, in GiB, one after the other."""
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB)
    for number in range(3):
        builder.step(number, ms(10 * number), ms(10 * number + 10))
        builder.operator("aten::mm", ms(10 * number), ms(10 * number + 1))
        builder.kernel("sgemm", ms(10 * number), ms(10 * number + 10))
    for place, (allocated, reserved) in enumerate(course):
        builder.memory(
            ms(1 + place),
            GIB,
            allocated_bytes=int(allocated * GIB),
            reserved_bytes=int(reserved * GIB),
            address=place,
        )
    return builder.build()


# 30 GiB are free when 10 more are reserved: no piece is large enough.
SLOW = training((30, 60), (30, 60), (40, 70), (20, 70))
FIXED = training((30, 35), (40, 45), (20, 45))


def test_fires_on_fragments_and_not_on_a_pool_in_use() -> None:
    checked = check_rule(MemoryFragmentation, slow=SLOW, fixed=FIXED)
    finding = checked.findings[0]
    # 70 - 40 GiB of 80.
    assert finding.summary.startswith("30.0 GiB of 80.0 GiB of device memory (37.5 %) is reserved")
    assert "10.0 GiB of it was reserved while more than that was free in pieces" in finding.summary
    assert finding.severity == "medium"


def test_an_earlier_peak_may_have_reserved_it() -> None:
    (finding,) = find(MemoryFragmentation, training((30, 73), (40, 73))) or ()
    assert "or left from an earlier peak" in finding.summary
    assert finding.severity == "high"  # 73 of 80 GiB: 91 %


def test_memory_reserved_when_too_little_was_free_is_not_fragmented() -> None:
    # 5 GiB were free when 10 were reserved.
    (finding,) = find(MemoryFragmentation, training((55, 60), (40, 70))) or ((),)
    assert finding == ()


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"minimum_unused_share": 0.37}, 1),
        ({"minimum_unused_share": 0.38}, 0),
        ({"minimum_reserved_share": 0.87}, 1),
        ({"minimum_reserved_share": 0.88}, 0),
    ],
)
def test_just_below_and_just_above_the_limits(settings: dict[str, float], count: int) -> None:
    assert len(find(MemoryFragmentation, SLOW, settings=settings) or ()) == count


def of_snapshot(*, in_pieces: bool) -> Snapshot:
    """10 GiB reserved for a peak of 6: the second half was reserved while 4 GiB were free."""
    made = Snapshot()
    first = made.segment(5 * GIB)
    for piece in range(5):
        made.allocate(first + piece * GIB, GIB)
    for piece in (0, 2, 3, 4) if in_pieces else ():
        made.free(first + piece * GIB, GIB)
    second = made.segment(3 * GIB)
    return made.allocate(second, 3 * GIB)


def test_a_snapshot_proves_fragmentation_without_the_size_of_the_device() -> None:
    # Allocated at most 5 GiB, reserved 8. 3 of them were reserved while 4 were free.
    (finding,) = find(MemoryFragmentation, of_snapshot(in_pieces=True).trace()) or ()
    assert finding.summary.startswith("3.00 GiB (37.5 % of what is reserved) is reserved but never")
    assert "3.00 GiB was reserved while more than that was free in pieces" in finding.summary
    assert finding.severity == "low"
    # What the allocator could give back, of what it holds.
    assert finding.memory == MemorySaving(3 * GIB, 8 * GIB)
    # All in use: 8 of 8 GiB.
    assert find(MemoryFragmentation, of_snapshot(in_pieces=False).trace()) == ()


def test_a_snapshot_in_which_nothing_is_reserved_passes() -> None:
    made = Snapshot()
    assert find(MemoryFragmentation, made.allocate(made.segment(0), 0).trace()) == ()


def test_the_device_decides_how_much_it_matters() -> None:
    trace = of_snapshot(in_pieces=True).trace()
    # 8 of 80 GiB reserved: there is plenty of room.
    assert find(MemoryFragmentation, trace, options=Options(device="A100 SXM4 80GB")) == ()
