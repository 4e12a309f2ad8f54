"""Kernels and operators that were added or removed, or have become slower or faster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from tb_perfadvisor.report.comparison import model
from tb_perfadvisor.report.comparison.operation_names import variant_key
from tb_perfadvisor.report.comparison.run_facts import OperationTime, OperationTimes

MAX_ROWS = 20
LEAST_SHARE = 0.001
"""Of the base's time: thousands of kernels that differ by less would hide what matters."""


class StepCounts(Struct, frozen=True):
    """What totals are divided by: each run's steps, or 1."""

    base: int
    target: int


def operation_changes(
    base: OperationTimes | None, target: OperationTimes | None, counts: StepCounts, base_ns: int
) -> model.OperationChanges | None:
    """What has changed between two lists of names; None where one is missing.

    Equal names are paired first. What is left over on both sides is paired as variants of the
    same kernel; what is left over then was added or removed.

    Args:
        base: The base's.
        target: The target's.
        counts: Steps of each.
        base_ns: The base's time, against which a change is large or small.
    """
    if base is None or target is None or base.is_device_time != target.is_device_time:
        return None
    changes = [
        _change(*pair, counts) for pair in _paired({one.name: one for one in base.rows}, target)
    ]
    large = [one for one in changes if abs(one.change_ns) >= max(LEAST_SHARE * base_ns, 1)]
    large.sort(key=lambda one: (-abs(one.change_ns), one.name))
    return model.OperationChanges(
        is_device_time=base.is_device_time,
        rows=large[:MAX_ROWS],
        truncated=max(len(large) - MAX_ROWS, 0),
    )


_Side = Sequence[OperationTime]


def _paired(
    base: dict[str, OperationTime], target: OperationTimes
) -> Iterable[tuple[_Side, _Side]]:
    """Each name with its counterpart; a side may have several variants, or none."""
    variants: dict[str, tuple[list[OperationTime], list[OperationTime]]] = defaultdict(
        lambda: ([], [])
    )
    left = dict(base)
    for one in target.rows:
        same = left.pop(one.name, None)
        if same is not None:
            yield [same], [one]
        else:
            variants[variant_key(one.name)][1].append(one)
    for one in left.values():
        variants[variant_key(one.name)][0].append(one)
    for before, after in variants.values():
        if before and after:
            yield before, after
        else:
            yield from (([one], []) for one in before)
            yield from (([], [one]) for one in after)


def _change(before: _Side, after: _Side, counts: StepCounts) -> model.OperationChange:
    base_ns = _per_step(sum(one.total_ns for one in before), counts.base) if before else None
    target_ns = _per_step(sum(one.total_ns for one in after), counts.target) if after else None
    change_ns = (target_ns or 0) - (base_ns or 0)
    # Both sides are in order of cost: the first of each speaks for its variants.
    first, last = (before or after)[0], (after or before)[0]
    status: model.OperationStatus = "slower" if change_ns > 0 else "faster"
    if base_ns is None or target_ns is None:
        status = "added" if base_ns is None else "removed"
    return model.OperationChange(
        name=first.name,
        target_name=last.name if last.name != first.name else None,
        family=last.family,
        status=status,
        base_ns=base_ns,
        target_ns=target_ns,
        change_ns=change_ns,
        base_count=sum(one.count for one in before) / counts.base if before else None,
        target_count=sum(one.count for one in after) / counts.target if after else None,
    )


def _per_step(total_ns: int, count: int) -> int:
    return round(total_ns / count)
