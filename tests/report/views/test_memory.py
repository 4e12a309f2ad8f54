from __future__ import annotations

from itertools import accumulate

from tb_perfadvisor.report.views import make_views
from tb_perfadvisor.report.views.memory import MAX_POINTS, MemoryView, make_memory_view
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, ms, run_of, us

MIB = 1 << 20


def view_of(changes: list[int], *, totals: bool = True, reserved: int = 500) -> MemoryView:
    """Two steps of 10 ms, with the given changes in MiB, one per microsecond."""
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3", memory_bytes=80 << 30)
    for number in range(2):
        builder.step(number, ms(10 * number), ms(10 * number + 10))
        builder.operator("aten::mm", ms(10 * number), ms(10 * number + 10))
        builder.kernel("gemm", ms(10 * number + 1), ms(10 * number + 10))
    for place, (change, total) in enumerate(
        zip(changes, accumulate(changes, initial=100), strict=False)
    ):
        builder.memory(
            us(1 + place),
            change * MIB,
            allocated_bytes=(total + change) * MIB if totals else -1,
            reserved_bytes=reserved * MIB if totals else -1,
            address=place if change > 0 else place - 1,
            thread="main",
        )
    view = make_memory_view(Signals(run_of(builder.build())))
    assert view is not None
    return view


def test_memory_over_time_and_its_peak() -> None:
    view = view_of([10, -10, 30])
    assert view.at_ns == [us(1), us(2), us(3)]
    assert view.allocated_bytes == [110 * MIB, 100 * MIB, 130 * MIB]
    assert view.reserved_bytes == [500 * MIB] * 3
    assert (view.capacity_bytes, view.peak_at_ns, view.is_relative) == (80 << 30, us(3), False)
    assert (view.step, view.step_end_bytes) == ([0, 1], [130 * MIB] * 2)
    held = [(memory.operator, memory.phase, memory.count, memory.bytes) for memory in view.alive]
    assert held == [
        (None, "before-recording", None, 100 * MIB),
        ("aten::mm", "forward", 1, 30 * MIB),
    ]


def test_sampling_keeps_the_peak() -> None:
    changes = [10, -10] * 4_000
    changes[5_000] = 70
    changes[5_001] = -70
    view = view_of(changes)
    assert view.changes == 8_000
    assert len(view.at_ns) == MAX_POINTS
    assert max(view.allocated_bytes) == 170 * MIB
    assert (view.at_ns[0], view.at_ns[-1]) == (us(1), us(8_000))
    assert view.at_ns == sorted(view.at_ns)


def test_old_files_have_no_totals() -> None:
    view = view_of([10, -10, 30], totals=False)
    assert view.is_relative
    assert view.allocated_bytes == [10 * MIB, 0, 30 * MIB]
    assert view.reserved_bytes is None


def test_nothing_recorded() -> None:
    signals = Signals(run_of(TraceBuilder().step(0, 0, ms(1)).kernel("gemm", 0, ms(1)).build()))
    assert make_memory_view(signals) is None
    assert make_views(signals)["memory"] is None
