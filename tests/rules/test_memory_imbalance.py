from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.rules.memory.capacity import MemoryImbalance
from tb_perfadvisor.testing import check_rule, find, run_of
from tb_perfadvisor.trace import Run
from tests.support.changed_rule import changed
from tests.support.memory_snapshots import Snapshot

GIB = 1 << 30


def ranks(*peaks_gib: float) -> Run:
    """A snapshot of each rank, all of which call their device 0."""
    traces = []
    for rank, peak in enumerate(peaks_gib):
        made = Snapshot()
        segment = made.segment(64 * GIB)
        made.allocate(segment, int(peak * GIB)).free(segment, int(peak * GIB))
        trace = made.trace()
        traces.append(replace(trace, source=replace(trace.source, rank=rank)))
    return run_of(*traces)


def test_fires_on_one_full_device() -> None:
    checked = check_rule(MemoryImbalance, slow=ranks(40, 30, 30, 28), fixed=ranks(30, 30, 30, 28))
    (finding,) = checked.findings
    # The median of 28, 30, 30 and 40 is 30.
    assert finding.summary == (
        "At its peak, rank 0's device 0 has 40.0 GiB allocated, 10.0 GiB (25.0 %) more than the"
        " others' usual 30.0 GiB: it limits the batch of all 4."
    )


def test_of_two_the_emptier_is_the_usual_one() -> None:
    (finding,) = find(MemoryImbalance, ranks(20, 40)) or ()
    assert "20.0 GiB (50.0 %) more than the others' usual 20.0 GiB" in finding.summary


def test_a_device_with_only_a_context_does_not_count() -> None:
    # 1 GiB is less than a twentieth of 40.
    assert find(MemoryImbalance, ranks(40, 1)) == ()


def test_limits() -> None:
    # 10 of 40 GiB: a quarter.
    run = ranks(40, 30, 30)
    assert find(changed(MemoryImbalance, {"minimum_share": 0.26}), run) == ()
    assert find(changed(MemoryImbalance, {"minimum_share": 0.24}), run)
    assert find(changed(MemoryImbalance, {"minimum_bytes": 11 * GIB}), run) == ()
    # 30 of 40: three quarters.
    assert find(changed(MemoryImbalance, {"used_share": 0.76}), ranks(40, 30)) == ()
