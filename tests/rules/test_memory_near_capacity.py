from __future__ import annotations

from tb_perfadvisor.rules.memory.capacity import MemoryNearCapacity
from tb_perfadvisor.signals import Options
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import ms
from tb_perfadvisor.trace import Trace
from tests.support.memory_snapshots import Snapshot, frames

GIB = 1 << 30


def _trace(peak_gib: float, reserved_gib: float) -> Trace:
    """A step on a device of 80 GiB whose memory peaks in the middle."""
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB)
    for number in range(3):
        at = number * 10
        builder.step(number, ms(at), ms(at + 10))
        builder.operator("aten::mm", ms(at), ms(at + 1))
        builder.kernel("sgemm", ms(at), ms(at + 10))
        for offset, gib in ((1, 10.0), (5, peak_gib), (8, 10.0)):
            builder.memory(
                ms(at + offset),
                0,
                allocated_bytes=int(gib * GIB),
                reserved_bytes=int(reserved_gib * GIB),
                device=0,
            )
    return builder.build()


def test_fires_near_capacity_and_not_below() -> None:
    checked = check_rule(MemoryNearCapacity, slow=_trace(60, 78), fixed=_trace(40, 50))
    finding = checked.findings[0]
    assert finding.saving is None
    assert finding.severity == "high"  # 78 of 80 GiB: 97.5 %
    assert "78.0 GiB of 80.0 GiB" in finding.summary


def test_just_below_and_just_above_the_limit() -> None:
    assert find(MemoryNearCapacity, _trace(60, 71.9)) == ()
    (finding,) = find(MemoryNearCapacity, _trace(60, 72.1)) or ()
    assert finding.severity == "medium"


def of_snapshot(peak_gib: float) -> Trace:
    made = Snapshot()
    segment = made.segment(int(peak_gib * GIB))
    stack = frames(("/p/model.py", 3, "forward"))
    return made.allocate(segment, int(peak_gib * GIB / 2), stack).trace()


def test_a_snapshot_of_a_device_that_the_user_names() -> None:
    options = Options(device="A100 SXM4 80GB")
    (finding,) = find(MemoryNearCapacity, of_snapshot(76), options=options) or ()
    # 76 of 80 GiB: 95 %.
    assert finding.summary == (
        "Peak reserved memory is 76.0 GiB of 80.0 GiB (95.0 %). 38.0 GiB was allocated at the peak"
        "; p/model.py:3 forward holds 38.0 GiB (100.0 %) of it."
    )
    assert find(MemoryNearCapacity, of_snapshot(70), options=options) == ()
    # Nothing says how large the device is.
    assert find(MemoryNearCapacity, of_snapshot(76)) is None
