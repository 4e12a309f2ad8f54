"""What differs between two recordings: causes, operations, modules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
from msgspec import Struct

from tb_perfadvisor.comparison.interval import NOISE_SHARE, blocks_of, is_certain, period_of
from tb_perfadvisor.comparison.run_facts import (
    OperationTime,
    OperationTimes,
    RunFacts,
    Setup,
    ShapeUse,
)
from tb_perfadvisor.contract import model
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace.names import variant_key
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import format_share

FEW_STEPS = 3
"""Fewer steps hardly show how much steps vary."""
UNEVEN_SHARE = 0.1
"""Of the median. By less, the mean of five steps differs by chance."""
PRECISION_SHARE = 0.1
"""Share of compute time. A few more or fewer casts do not change the precision."""
COMMON_SHARE = 0.9
"""Share of the operators' time on input shapes that both runs have. The last batch of an epoch may
be smaller, but sequences of a different length are a different workload."""
SAME_PROGRAM_SHARE = 0.5
"""Share of the operators' time. If half of it is in operators that the other run lacks, one program
was compiled, or they are different programs."""


def differences(base: RunFacts, target: RunFacts) -> list[model.Difference]:
    """Everything to know before attributing the change to a single cause."""
    return [
        model.Difference(id=id, message=message)
        for id, message in chain(
            _steps(base, target),
            _work(base, target),
            _machine(base.setup, target.setup),
            _recording(base, target),
        )
    ]


def incomparable(base: RunFacts, target: RunFacts) -> str | None:
    """Why the ratio of two runs' times means nothing; None if it may mean something."""
    before, after = base.setup, target.setup
    for side, facts in _sides(base, target):
        if facts.not_to_act_on:
            return f"{side} is no recording to act on, because {facts.not_to_act_on}"
    if base.is_synthetic != target.is_synthetic:
        return "one of the profiles is synthetic, the other was recorded"
    if before.framework != after.framework:
        return "the programs use different frameworks"
    is_same_work = before.batch is not None and before.batch == after.batch
    if (before.device is None) != (after.device is None) and not (
        is_same_work and before.world_size == after.world_size
    ):
        return "one ran on the CPU, the other did not, and their steps may do different work"
    return None


_Found = Iterator[tuple[str, str]]


def _steps(base: RunFacts, target: RunFacts) -> _Found:
    if not (base.steps and target.steps):
        without = " and ".join(side for side, facts in _sides(base, target) if not facts.steps)
        yield (
            "no-steps",
            f"No steps are known in {without}, so the whole recordings are compared. This says "
            "something about speed only if both contain the same amount of work.",
        )
        return
    if base.step_source != target.step_source:
        yield (
            "steps-differ",
            f"The steps come from {base.step_source} in the base and from {target.step_source} in "
            "the target, so they may contain different amounts of work.",
        )
    kinds = [", ".join(sorted(set(facts.step_kinds))) or "one" for facts in (base, target)]
    if kinds[0] != kinds[1]:
        yield "kinds-differ", _two("The kinds of steps", *kinds)
    for side, facts in _sides(base, target):
        if facts.steps < FEW_STEPS:
            number = "A single step" if facts.steps == 1 else f"{facts.steps} steps"
            yield (
                "few-steps",
                f"{number} of {side} cannot show how much steps vary. Record ten.",
            )
        period = period_of(facts.step_ns)
        if left := facts.steps % period:
            yield (
                "whole-periods",
                f"The steps of {side} repeat every {period}, so the last "
                f"{'one is' if left == 1 else f'{left} are'} left out.",
            )
        median_ns, mean_ns = facts.median_step_ns, facts.step_time_ns
        if period == 1 and not facts.step_kinds and median_ns and mean_ns:
            more = mean_ns / median_ns - 1
            if more > UNEVEN_SHARE:
                yield (
                    "uneven-steps",
                    f"A few steps of {side} take much longer: the mean is {format_share(more)} "
                    "more than the median. How many of them a recording holds is partly chance, so "
                    "record more steps.",
                )


def _work(base: RunFacts, target: RunFacts) -> _Found:
    before, after = base.setup, target.setup
    if before.framework != after.framework:
        yield "framework-differs", _two("The framework", before.framework, after.framework)
    if before.batch and after.batch and before.batch != after.batch:
        yield (
            "batch-differs",
            _two("The batch", before.batch, after.batch)
            + " Compare samples per second instead of step times.",
        )
    elif (message := different_shapes(base.shapes, target.shapes)) is not None:
        yield "shapes-differ", message
    if (shift := _precision_shift(before.precision, after.precision)) is not None:
        yield "precision-differs", shift
    common = _common_share(base.operators, target.operators)
    if common is not None and common < SAME_PROGRAM_SHARE:
        yield (
            "program-differs",
            f"Only {format_share(common)} of the operators' time is in operators that both runs "
            "have. One of them is compiled, or they are different programs.",
        )


def _machine(before: Setup, after: Setup) -> _Found:
    if before.device != after.device:
        yield "device-differs", _two("The device", _device(before), _device(after))
    elif before.devices_used != after.devices_used and None not in (
        before.devices_used,
        after.devices_used,
    ):
        yield (
            "devices-differ",
            _two("The number of devices used", before.devices_used, after.devices_used),
        )
    ranks = [setup.world_size or setup.workers for setup in (before, after)]
    if ranks[0] != ranks[1]:
        yield "ranks-differ", _two("The number of ranks", *ranks)
    elif before.workers != after.workers:
        yield "ranks-differ", _two("The number of recorded ranks", before.workers, after.workers)
    versions = {before.version, after.version} - {""}
    if before.framework == after.framework and len(versions) > 1:
        yield "version-differs", _two("The recorder", before.version, after.version)


def _recording(base: RunFacts, target: RunFacts) -> _Found:
    before, after = base.setup, target.setup
    options = (
        ("Python stacks", before.has_stacks, after.has_stacks),
        ("input shapes", before.has_shapes, after.has_shapes),
        ("memory", before.has_memory, after.has_memory),
    )
    changed = [(name, was) for name, was, now in options if None not in (was, now) and was != now]
    if changed:
        recorded = "; ".join(
            f"{name} only in the {'base' if was else 'target'}" for name, was in changed
        )
        yield (
            "recording-differs",
            f"The profiler recorded {recorded}. Recording more slows the host down, so compare "
            "recordings with the same options.",
        )
    seen = (
        ("waiting for input", base.input_wait_share, target.input_wait_share),
        (
            "communication",
            base.exposed_communication_share,
            target.exposed_communication_share,
        ),
    )
    for what, was, now in seen:
        if (was is None) != (now is None):
            yield (
                "unseen",
                f"The {'base' if was is None else 'target'}'s profile does not show {what}. Any "
                "such time counts as something else there.",
            )
    for side, facts in _sides(base, target):
        if facts.is_truncated:
            yield "truncated", f"A file of {side} is truncated, so its end is missing."
    if base.is_synthetic != target.is_synthetic:
        yield "synthetic", "One of the profiles is synthetic, the other was recorded."


def _sides(base: RunFacts, target: RunFacts) -> tuple[tuple[str, RunFacts], tuple[str, RunFacts]]:
    return ("the base", base), ("the target", target)


def _two(what: str, before: object, after: object) -> str:
    before, after = ("unknown" if value is None else value for value in (before, after))
    return f"{what} differs: {before} in the base, {after} in the target."


def _device(setup: Setup) -> str:
    return "CPU" if setup.device is None else setup.device or "unknown"


def different_shapes(before: list[ShapeUse], after: list[ShapeUse]) -> str | None:
    """A message if the same operators have different shapes, with the costliest example."""
    names = {use.name for use in before} & {use.name for use in after}
    sides = [[use for use in uses if use.name in names] for uses in (before, after)]
    for uses, other_uses in (sides, sides[::-1]):
        known = {(use.name, use.shapes) for use in other_uses}
        unshared = [use for use in uses if (use.name, use.shapes) not in known]
        whole_ns, unshared_ns = (sum(use.total_ns for use in part) for part in (uses, unshared))
        if unshared_ns > (1 - COMMON_SHARE) * whole_ns:
            # Both lists are sorted by cost, so the first use is the most important.
            name = unshared[0].name
            examples = [unshared[0].shapes, next(u.shapes for u in other_uses if u.name == name)]
            in_base, in_target = examples if uses is sides[0] else examples[::-1]
            return (
                f"The shapes of operators differ: only {format_share(1 - unshared_ns / whole_ns)} "
                f"of their time is on shapes that both runs have. {name} has {in_base} in the base "
                f"and {in_target} in the target."
            )
    return None


def _precision_shift(
    before: Mapping[str, float] | None, after: Mapping[str, float] | None
) -> str | None:
    """A message if the share of compute time of some precision changed."""
    if before is None or after is None:
        return None
    widths = [
        width
        for width in before
        if width != "unknown" and abs(before[width] - after.get(width, 0.0)) >= PRECISION_SHARE
    ]
    if not widths:
        return None
    shares = ", ".join(
        f"{width}-bit {format_share(before[width])} → {format_share(after.get(width, 0.0))}"
        for width in widths
    )
    return f"The precision differs, in shares of compute time: {shares}."


def _common_share(before: OperationTimes | None, after: OperationTimes | None) -> float | None:
    """The share of operator time in operators that both runs have; the smaller of both runs."""
    if before is None or after is None or before.is_device_time != after.is_device_time:
        return None
    keys = [{variant_key(row.name) for row in side.rows} for side in (before, after)]
    shares = []
    for side, other_keys in ((before, keys[1]), (after, keys[0])):
        whole = sum(row.total_ns for row in side.rows)
        common = sum(row.total_ns for row in side.rows if variant_key(row.name) in other_keys)
        shares.append(common / whole if whole else 1.0)
    return min(shares)


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

    `counts` are the steps of each. The base's time decides whether a change is large.
    """
    if base is None or target is None or base.is_device_time != target.is_device_time:
        return None
    changes = [
        _change(*pair, counts) for pair in _paired({row.name: row for row in base.rows}, target)
    ]
    return _largest(changes, base_ns, is_device_time=base.is_device_time)


def _largest(
    changes: Iterable[model.OperationChange], base_ns: int, *, is_device_time: bool
) -> model.OperationChanges:
    large = [change for change in changes if abs(change.change_ns) >= max(LEAST_SHARE * base_ns, 1)]
    large.sort(key=lambda change: (-abs(change.change_ns), change.name))
    return model.OperationChanges(
        is_device_time=is_device_time,
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
    # Both sides are sorted by cost: the first name stands for all variants.
    first, last = (before or after)[0], (after or before)[0]
    return model.OperationChange(
        name=first.name,
        target_name=last.name if last.name != first.name else None,
        family=last.family,
        status=_status(base_ns, target_ns),
        base_ns=base_ns,
        target_ns=target_ns,
        change_ns=(target_ns or 0) - (base_ns or 0),
        base_count=sum(row.count for row in before) / counts.base if before else None,
        target_count=sum(row.count for row in after) / counts.target if after else None,
    )


def _status(base_ns: int | None, target_ns: int | None) -> model.OperationStatus:
    if base_ns is None or target_ns is None:
        return "added" if base_ns is None else "removed"
    return "slower" if target_ns > base_ns else "faster"


def ratio_as_printed(base_ns: int, target_ns: int) -> float | None:
    """By the three digits of each that are shown; None unless both are more than zero."""
    before, after = (float(f"{time_ns:.3g}") for time_ns in (base_ns, target_ns))
    return before / after if before and after else None


def _per_step(total_ns: int, count: int) -> int:
    return round(total_ns / count)


_OUTSIDE = "outside of modules"
_NUMBER = regex(r"(?<![^\W_])\d+(?![^\W_])")
"""The number of a module among its kind: `Linear_5`, `layers.3.attention`, not `Conv2d`."""
_Path = tuple[str, ...]
_Times = Mapping[_Path, Int64]
"""The time of each module in each step, or in all of the recording."""


def module_changes(
    base: RunFacts, target: RunFacts, periods: tuple[int, int] | None, base_ns: int
) -> model.OperationChanges | None:
    """The changes of modules' own times; None if none of a module that both runs have.

    Modules are paired by their kind: their path without numbers, which shift if one is added. The
    facts are of whole `periods` of steps; these are None without steps.
    """
    before, after = base.modules, target.modules
    if before is None or after is None or before.is_device_time != after.is_device_time:
        return None
    sides = [
        {
            row.path: np.array(row.step_ns[:steps] if periods else [sum(row.step_ns)], np.int64)
            for row in side.rows
        }
        for side, steps in ((before, base.steps), (after, target.steps))
    ]
    kinds: dict[_Path, list[_Path]] = defaultdict(list)
    for path in dict.fromkeys(chain(*sides)):
        kinds[tuple(_NUMBER.sub("*", name) for name in path)].append(path)
    changes = [
        _module_change(kind, paths, sides, periods)
        for kind, members in kinds.items()
        for paths in _apart(members, sides)
    ]
    is_common = any(change.base_count and change.target_count for change in changes)
    found = _largest(changes, base_ns, is_device_time=before.is_device_time)
    return found if is_common and any(row.name != _OUTSIDE for row in found.rows) else None


def _apart(paths: list[_Path], sides: Sequence[_Times]) -> list[list[_Path]]:
    """Modules of a kind; one of both runs with more than half of what changed is apart."""
    before, after = (
        [float(side[path].mean()) if path in side else 0.0 for path in paths] for side in sides
    )
    changes = [abs(now - was) for was, now in zip(before, after, strict=True)]
    largest = int(np.argmax(changes))
    is_common = all(paths[largest] in side for side in sides)
    if len(paths) == 1 or not is_common or 2 * changes[largest] <= sum(changes):
        return [paths]
    return [[paths[largest]], paths[:largest] + paths[largest + 1 :]]


def _module_change(
    kind: _Path, paths: list[_Path], sides: Sequence[_Times], periods: tuple[int, int] | None
) -> model.OperationChange:
    """The change of some modules of a kind."""
    found = [[side[path] for path in paths if path in side] for side in sides]
    step_ns = [
        np.sum(times, axis=0) if times else np.zeros_like(next(iter(side.values())))
        for times, side in zip(found, sides, strict=True)
    ]
    # Rounded down, so that all rows together take no more than the step.
    base_ns, target_ns = (int(times.sum()) // len(times) for times in step_ns)
    before, after = base_ns if found[0] else None, target_ns if found[1] else None
    is_clear = None
    if periods is not None:
        is_clear = is_certain(*map(blocks_of, (times.tolist() for times in step_ns), periods))
        is_clear &= abs(target_ns - base_ns) > NOISE_SHARE * max(base_ns, target_ns)
    return model.OperationChange(
        name="/".join(paths[0] if len(paths) == 1 else kind) or _OUTSIDE,
        target_name=None,
        family=None,
        status=_status(before, after),
        base_ns=before,
        target_ns=after,
        change_ns=target_ns - base_ns,
        base_count=(len(found[0]) or None) if kind else None,
        target_count=(len(found[1]) or None) if kind else None,
        speed_up=ratio_as_printed(base_ns, target_ns) if periods else None,
        is_certain=is_clear,
    )
