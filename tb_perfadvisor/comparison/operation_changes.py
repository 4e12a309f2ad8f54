"""Kernels and operators that were added or removed, or became slower or faster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from tb_perfadvisor.comparison.run_facts import OperationTime, OperationTimes
from tb_perfadvisor.contract import model
from tb_perfadvisor.trace.operation_names import variant_key

MAX_ROWS = 20
LEAST_SHARE = 0.001
"""Share of the base's time. Thousands of smaller changes would hide what matters."""


class StepCounts(Struct, frozen=True):
    """The divisors of totals: each run's number of steps, or 1."""

    base: int
    target: int


def operation_changes(
    base: OperationTimes | None, target: OperationTimes | None, counts: StepCounts, base_ns: int
) -> model.OperationChanges | None:
    """The changes between two lists of kernels or operators; None if one is missing.

    First, equal names are paired. Then the remaining names of both sides are paired as variants of
    the same kernel. Names that remain after that were added or removed.

    Args:
        base: The base's.
        target: The target's.
        counts: The number of steps of each.
        base_ns: The base's time, which decides whether a change is large.
    """
    if base is None or target is None or base.is_device_time != target.is_device_time:
        return None
    changes = [
        _change(*pair, counts) for pair in _paired({row.name: row for row in base.rows}, target)
    ]
    large = [change for change in changes if abs(change.change_ns) >= max(LEAST_SHARE * base_ns, 1)]
    large.sort(key=lambda change: (-abs(change.change_ns), change.name))
    return model.OperationChanges(
        is_device_time=base.is_device_time,
        rows=large[:MAX_ROWS],
        truncated=max(len(large) - MAX_ROWS, 0),
    )


_Side = Sequence[OperationTime]


def _paired(
    base: dict[str, OperationTime], target: OperationTimes
) -> Iterable[tuple[_Side, _Side]]:
    """Each name with its counterpart. A side may have several variants, or none."""
    variants: dict[str, tuple[list[OperationTime], list[OperationTime]]] = defaultdict(
        lambda: ([], [])
    )
    left = dict(base)
    for row in target.rows:
        same = left.pop(row.name, None)
        if same is not None:
            yield [same], [row]
        else:
            variants[variant_key(row.name)][1].append(row)
    for row in left.values():
        variants[variant_key(row.name)][0].append(row)
    for before, after in variants.values():
        if before and after:
            yield before, after
        else:
            yield from (([row], []) for row in before)
            yield from (([], [row]) for row in after)


def _change(before: _Side, after: _Side, counts: StepCounts) -> model.OperationChange:
    base_ns = _per_step(sum(row.total_ns for row in before), counts.base) if before else None
    target_ns = _per_step(sum(row.total_ns for row in after), counts.target) if after else None
    change_ns = (target_ns or 0) - (base_ns or 0)
    # Both sides are sorted by cost: the first name stands for all variants.
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
        base_count=sum(row.count for row in before) / counts.base if before else None,
        target_count=sum(row.count for row in after) / counts.target if after else None,
    )


def _per_step(total_ns: int, count: int) -> int:
    return round(total_ns / count)
