from __future__ import annotations

import pytest

from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.memory.allocations import MemoryGrowth
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, ms
from tb_perfadvisor.trace import Trace
from tests.support.changed_rule import changed
from tests.support.memory_snapshots import Snapshot, frames

MIB = 1 << 20


def training(
    kept_mib: list[int], *, capacity_gib: int = 0, on_device: bool = True, addresses: bool = True
) -> Trace:
    """Steps that each allocate 100 MiB and free it, and keep some MiB (freeing, if negative)."""
    builder = TraceBuilder()
    if on_device:
        memory_bytes = capacity_gib << 30 or None
        builder.device("NVIDIA H100 80GB HBM3", memory_bytes=memory_bytes)
    device = 0 if on_device else -1
    allocated, address = 1000, 10

    def change(at: float, mib: int, place: int) -> None:
        nonlocal allocated
        allocated += mib
        builder.memory(
            ms(at),
            mib * MIB,
            allocated_bytes=allocated * MIB,
            device=device,
            address=place if addresses else -1,
            thread="main",
        )

    for number, mib in enumerate(kept_mib):
        at = 10 * number
        builder.step(number, ms(at), ms(at + 10))
        builder.operator("aten::mm", ms(at), ms(at + 2), launches=on_device)
        builder.operator("aten::nll_loss", ms(at + 3), ms(at + 5), launches=on_device)
        if on_device:
            builder.kernel("sgemm", ms(at + 1), ms(at + 9))
        change(at + 1, 100, 1)
        change(at + 4, mib, address + number)
        change(at + 6, -100, 1)
    return builder.build()


LEAK = training([10] * 6, capacity_gib=200)


def test_fires_on_growth_and_not_without() -> None:
    checked = check_rule(MemoryGrowth, slow=LEAK, fixed=training([0] * 6, capacity_gib=200))
    finding = checked.findings[0]
    assert finding.severity == "medium"
    # Five times 10 MiB from the end of the first step to that of the sixth.
    assert finding.summary == (
        "Each step leaves 10.0 MiB allocated, mostly from aten::nll_loss, 50.0 MiB over 6 steps:"
        " at that rate it is full in 20,364 steps."  # (204,800 - 1,160) / 10
    )
    held = next(item for item in finding.evidence if isinstance(item, Table))
    # From the steps between the first and the last.
    assert held.rows == (("aten::nll_loss", None, "forward", 4, 40 * MIB),)


def test_says_when_the_device_will_be_full() -> None:
    # The peak is at 1000 + 50 + 100 MiB in the last step, and 1160 with the 10 that it keeps.
    (finding,) = find(MemoryGrowth, training([10] * 6, capacity_gib=2)) or ()
    assert "full in 88 steps" in finding.summary  # (2048 - 1160) / 10
    assert finding.severity == "high"


def test_finds_growth_of_host_memory_on_the_cpu() -> None:
    (finding,) = find(MemoryGrowth, training([10] * 6, on_device=False)) or ()
    assert "10.0 MiB" in finding.summary


@pytest.mark.parametrize(
    "kept_mib",
    [
        [400, 0, 0, 0, 0, 0],  # state created by the first step
        [10, 60, 60, 0, 0, 0],  # a cache that fills in the first half
        [10, 10, 10, -40, 10, 10],  # memory that is freed now and then
        [10, 0, 10, 0, 10, 0],
    ],
)
def test_other_patterns_are_not_leaks(kept_mib: list[int]) -> None:
    assert find(MemoryGrowth, training(kept_mib)) == ()


def test_without_addresses_only_the_growth_is_known() -> None:
    (finding,) = find(MemoryGrowth, training([10] * 6, addresses=False)) or ()
    assert "mostly from" not in finding.summary


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"minimum_steps": 6}, 1),
        ({"minimum_steps": 7}, 0),
        ({"minimum_growth": 0.043}, 1),  # 50 of 1160 MiB are 4.31 %
        ({"minimum_growth": 0.044}, 0),
        ({"minimum_bytes": 50 * MIB}, 1),
        ({"minimum_bytes": 50 * MIB + 1}, 0),
    ],
)
def test_just_below_and_just_above_the_limits(settings: dict[str, float], count: int) -> None:
    assert len(find(changed(MemoryGrowth, settings), LEAK) or ()) == count


def test_just_below_and_just_above_the_rising_share() -> None:
    trace = training([10, 10, 0, 10, 10, 10])  # four of five rises
    assert len(find(changed(MemoryGrowth, {"rising_share": 0.79}), trace) or ()) == 1
    assert find(changed(MemoryGrowth, {"rising_share": 0.81}), trace) == ()


def training_snapshot(kept_bytes: int, *, steps: int = 8, annotated: bool = True) -> Trace:
    """Each step allocates and frees 1 GiB, and keeps some bytes for good."""
    made = Snapshot()
    segment = made.segment(2 << 30)
    batch, kept = frames(("/p/model.py", 3, "forward")), frames(("/p/train.py", 12, "log"))
    for step in range(steps):
        if annotated:
            made.annotate(f"ProfilerStep#{step}")
        made.allocate(segment, 1 << 30, batch)
        if kept_bytes:
            at = segment + (1 << 30) + step * kept_bytes
            made.allocate(at, kept_bytes, kept).holds(segment, at, kept_bytes, kept)
        made.wait(1_000).free(segment, 1 << 30)
    return made.trace()


def test_a_snapshot_shows_the_line_that_keeps_memory() -> None:
    (finding,) = find(MemoryGrowth, training_snapshot(32 << 20)) or ()
    # Levels at the beginnings of 8 steps; the first two are left out, so 5 rises of 32 MiB.
    assert finding.summary == (
        "Each step (ProfilerStep) leaves 32.0 MiB allocated, mostly from p/train.py:12 log, "
        "160 MiB over 6."
    )
    assert find(MemoryGrowth, training_snapshot(0)) == ()


def test_a_snapshot_without_annotations_is_cut_into_slices() -> None:
    (finding,) = find(MemoryGrowth, training_snapshot(8 << 20, steps=100, annotated=False)) or ()
    assert "The history has no steps, so it was cut into 10 equal slices of time." in (
        finding.summary
    )
    assert find(MemoryGrowth, training_snapshot(0, steps=100, annotated=False)) == ()


def test_loading_weights_is_no_growth() -> None:
    made = Snapshot()
    segment = made.segment(8 << 30)
    for layer in range(100):
        made.wait(10).allocate(segment + (layer << 24), 1 << 24)
    assert not find(MemoryGrowth, made.trace())


def test_a_forward_pass_that_keeps_activations_is_no_growth() -> None:
    # Each layer frees half of what it allocates, and keeps the rest for the backward pass.
    made = Snapshot()
    segment = made.segment(8 << 30)
    for layer in range(100):
        at = segment + (layer << 24)
        made.wait(10).allocate(at, 1 << 24).allocate(segment + (4 << 30), 1 << 24)
        made.free(segment + (4 << 30), 1 << 24)
    assert not find(MemoryGrowth, made.trace())
