from __future__ import annotations

from itertools import combinations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.debugging import garbage_collections
from tb_perfadvisor.signals.host.idle import (
    LAUNCHING,
    OVERRIDING,
    STALLING,
    IdleOwner,
    idle_owners,
    idle_without,
)
from tb_perfadvisor.testing import TraceBuilder, run_of
from tb_perfadvisor.testing.builder import ms, us
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import intersect, total_ns


def optimizer_with_garbage_collection(gap_ns: int) -> Signals:
    """Forty updates, each launched after a gap; garbage is collected in the first half of one."""
    builder = TraceBuilder()
    period = gap_ns + us(10)
    begin, end = ms(1), ms(1) + 40 * period
    builder.step(0, 0, end)
    builder.kernel("gemm", 0, begin)
    builder.host(EventKind.ANNOTATION, "Optimizer.step#SGD.step", begin, end)
    for index in range(40):
        at = begin + index * period
        builder.operator("aten::add_", at, at + gap_ns, launches=False)
        builder.launch(at + gap_ns - us(5), at + gap_ns, key=f"launch {index}")
        builder.kernel("update", at + gap_ns, at + period, launched_by=f"launch {index}")
    builder.host(EventKind.PYTHON, "Python GC", begin + period, begin + period + gap_ns // 2)
    return Signals(run_of(builder.build()))


@pytest.mark.parametrize(
    ("gap_ns", "owner"),
    [(us(100), IdleOwner.OPTIMIZER_LOOP), (ms(3), IdleOwner.GARBAGE_COLLECTION)],
)
def test_launch_bound_rule_owns_short_gaps_and_stall_rules_long_ones(
    gap_ns: int, owner: IdleOwner
) -> None:
    signals = optimizer_with_garbage_collection(gap_ns)
    _, collection = garbage_collections(signals)
    disputed = intersect(signals.host_idle, collection)
    assert total_ns(disputed) > 0
    assert intersect(idle_owners(signals)[owner], disputed).tolist() == disputed.tolist()


@pytest.mark.parametrize("gap_ns", [us(100), ms(3)])
def test_owners_split_host_idle_without_overlap(gap_ns: int) -> None:
    signals = optimizer_with_garbage_collection(gap_ns)
    owned = idle_owners(signals)
    for left, right in combinations(IdleOwner, 2):
        assert len(intersect(owned[left], owned[right])) == 0, (left, right)
    everyone = (*OVERRIDING, *LAUNCHING, *STALLING, IdleOwner.SLOW_LAUNCH)
    assert set(everyone) == set(IdleOwner)
    total = sum(total_ns(owned[owner]) for owner in IdleOwner)
    assert total + total_ns(idle_without(signals, *everyone)) == total_ns(signals.host_idle)
