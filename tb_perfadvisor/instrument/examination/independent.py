"""Calls of the same operator, none of which needs what another one returns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from tb_perfadvisor.instrument.examination.calls import (
    MOST,
    PRODUCTS,
    Call,
    Place,
    Steps,
    operator_of,
    shapes_of,
    total_ns,
)
from tb_perfadvisor.machine.facts import Observed

_FEWEST: Final = 3
"""Two calls at one line may be a pair: of real and generated samples, of two views."""
_FEWEST_UNEQUAL: Final = 8
"""Tables of different lengths can be one with offsets, and groups of different sizes one list with
their numbers. That is more work than to stack equals."""
_LEAST_SHARE: Final = 0.02
"""A loop may have several lines."""
_MULTIPLICATIONS: Final = 8
"""With a core's vector units, in the time in which it reads an element from memory."""
_LARGE: Final = 1 << 20
"""Elements of a matrix that the caches next to a core do not hold until the next call."""
_JOINED: Final = frozenset({"embedding", "select", "slice", "index", "sum", "mean", "amax", "amin"})
"""Operators that one call can do for inputs of different sizes."""


class _Loop(Struct):
    """The calls at a line."""

    calls: list[Call]
    at_once: float = 0.0
    """How many of the costliest could be one."""
    spared: int = 0
    """How many calls one for all would do without."""
    reads_ns: float = 0.0
    """What reading matrices again takes that one for all would read once."""


def independent(steps: Steps) -> list[Observed]:
    """Lines that call the same operators several times, where no call needs another's result."""
    loops: dict[Place, _Loop] = {}
    forward = sum(call.kind == "forward" for step in steps for call in step)
    for step in steps:
        for group, levels in _levels(step):
            first, at_once = group[0], len(group) / levels
            fewest = _FEWEST if _are_equal(group) else _FEWEST_UNEQUAL
            if first.place is None or at_once < fewest or first.in_recurrent_layer:
                continue
            loop = loops.setdefault(first.place, _Loop([]))
            loop.calls += group
            loop.spared += len(group) - levels
            loop.reads_ns += _again_ns(group, levels)
            if not first.is_view and any(each.shape for each in first.inputs):
                loop.at_once = max(loop.at_once, at_once)
    updates = _updates(steps, loops)
    found = []
    for place, loop in loops.items():
        share = loop.spared / max(forward, 1)
        if share < _LEAST_SHARE or not loop.at_once:
            continue
        costliest = max((c for c in loop.calls if not c.is_view), key=lambda call: call.ns)
        path, line, function = place
        found.append(
            Observed(
                kind="independent",
                operator=operator_of(costliest),
                path=path,
                line=line,
                function=function,
                shapes=shapes_of(costliest),
                calls=round(len(loop.calls) / max(len(steps), 1)),
                share=min(share, 1.0),
                amount=loop.at_once,
                elements=_elements(costliest),
                updates=updates.get(place, 0.0) * (1 - 1 / loop.at_once),
                reads=min(loop.reads_ns / total_ns(steps), 1.0),
            )
        )
    return sorted(found, key=lambda each: -each.share)[:MOST]


def _again_ns(group: Sequence[Call], levels: int) -> float:
    """What reading matrices again takes in products of few rows, as vectors by the same matrix."""
    first = group[0]
    if first.name not in PRODUCTS or first.name.endswith("bmm") or len(first.inputs) < 2:
        return 0.0
    matrix = first.inputs[-1]
    matrices = {(call.inputs[-1].storage, call.inputs[-1].begins_at) for call in group}
    if len(matrix.shape) != 2 or matrix.size < _LARGE or len(matrices) > levels:
        return 0.0
    rows = first.outputs[0].size / matrix.shape[1]
    now, joined = (max(each / _MULTIPLICATIONS, 1) for each in (rows, rows * len(group) / levels))
    return sum(call.ns for call in group) * max(1 - levels * joined / (len(group) * now), 0.0)


def _elements(call: Call) -> int:
    """Of its largest input; of a product, at least as many as take as long as it computes."""
    largest = max((each.size for each in call.inputs), default=0)
    if call.name not in PRODUCTS or len(call.inputs) < 2 or not call.outputs:
        return largest
    matrix = call.inputs[-2]
    multiplications = call.outputs[0].size * (matrix.shape[-1] if matrix.shape else 1)
    return max(largest, multiplications // _MULTIPLICATIONS)


def _are_equal(group: Sequence[Call]) -> bool:
    shapes = {tuple(each.shape for each in call.inputs) for call in group}
    return len(shapes) == 1 and (group[0].is_view or len({_arguments(call) for call in group}) == 1)


def _updates(steps: Steps, loops: Mapping[Place, _Loop]) -> dict[Place, float]:
    """The share of the optimizer's calls that update the parameters of one of the calls each."""
    place_of: dict[int, set[Place | None]] = defaultdict(set)
    count: dict[int, int] = defaultdict(int)
    for step in steps:
        for call in step:
            if call.kind == "forward":
                for each in call.inputs:
                    if each.has_gradient:
                        place_of[each.storage].add(call.place)
                        count[each.storage] += 1
    update = [call for step in steps for call in step if call.kind == "update" and call.inputs]
    found: dict[Place, float] = defaultdict(float)
    for call in update:
        places = place_of.get(call.inputs[0].storage, set())
        # Parameters that are read once per step; those that all calls read are one already.
        if len(places) == 1 and count[call.inputs[0].storage] <= len(steps):
            (place,) = places
            if place is not None and place in loops:
                found[place] += 1 / len(update)
    return found


def _levels(calls: Sequence[Call]) -> list[tuple[list[Call], int]]:
    """Forward calls of the same operator on inputs of the same kind at the same line.

    Each group with the length of its longest chain of calls that need one another, also through
    gradients and updates. Groups of which nearly all calls have the same content are left out:
    their result is there already.
    """
    groups: dict[object, list[int]] = defaultdict(list)
    contents: dict[object, set[object]] = defaultdict(set)
    for number, call in enumerate(calls):
        if call.kind != "forward":
            continue
        is_known = call.content and call.computes and not call.is_random and call.inputs
        key = _alike(call)
        groups[key].append(number)
        contents[key].add(call.content if is_known else -number)
    wanted = {
        number: key
        for key, numbers in groups.items()
        if len(contents[key]) >= _FEWEST
        for number in numbers
    }
    # For each result, how many calls of each group it needs one after the other.
    depth: dict[int, dict[object, int]] = {}
    longest: dict[object, int] = defaultdict(int)
    for number, call in enumerate(calls):
        merged: dict[object, int] = {}
        for each in call.inputs:
            for needed, value in depth.get(each.storage, {}).items():
                merged[needed] = max(merged.get(needed, 0), value)
        group = wanted.get(number)
        if group is not None:
            merged[group] = merged.get(group, 0) + 1
            longest[group] = 1 if call.is_view else max(longest[group], merged[group])
        # What updates several tensors returns none of them.
        changed = {each.storage for each in call.outputs} | call.writes
        depth |= dict.fromkeys(() if call.is_view else changed, merged)
    return [
        ([calls[number] for number in numbers], longest[key])
        for key, numbers in groups.items()
        if key in longest
    ]


def _alike(call: Call) -> object:
    """What calls have in common that one call could replace."""
    if call.name in _JOINED:
        shapes: object = tuple(len(each.shape) for each in call.inputs)
        results = tuple(each.shape for each in call.outputs)
        return call.place, call.name, shapes, results, _arguments(call)
    return call.place, call.name, tuple(each.shape for each in call.inputs), _arguments(call)


def _arguments(call: Call) -> str:
    """What is no tensor. Views of different parts can be one of all."""
    return "" if call.is_view else repr(call.numbers)
