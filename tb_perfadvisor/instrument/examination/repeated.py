"""Results that were there already: in every step, earlier in the same round, or most rows of them.

What depends only on parameters, buffers, constants and inputs that stay is the same in every step,
if none of them changes. A parameter that is trained changes with each update, also where the steps
that were looked at happen to lie between two: so what depends on it is not the same in every step.
Between two updates it is, and if a program computes it again, for each part of an accumulated batch
for example, that is found as computed twice. So is what it computes twice from the same input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.instrument.examination.calls import (
    CALL_NS,
    Call,
    Place,
    Steps,
    noted,
    total_ns,
)
from tb_perfadvisor.machine.facts import Observed

_EVERYTHING: Final = 0.9
"""A program that computes so much again, and does not train, repeats itself to be measured."""

_FEWEST_ROWS: Final = 8
_ROUNDING: Final = 1e-4
"""Of the usual sum of a row: products of other sizes round otherwise. With a new place among N,
attention changes by about 1 / N."""

_Content = tuple[int, int]
"""The number of a result, and its checksum: kernels that are no operators may have changed it."""


def repeated(
    steps: Steps, inputs: set[int], called_at: Mapping[int, Place | None]
) -> list[Observed]:
    """Results that are the same in every step, and results that a program computes twice.

    A program that does not train may only be measured, with an input that is made up: one that
    stays while little else changes counts as changing. If there is none, nothing is found.
    """
    if not steps:
        return []
    calls = [call for step in steps for call in step]
    computed = [call for call in calls if call.kind == "forward" and call.computes]
    trains = any(call.kind in ("backward", "update") for call in calls)
    changed = {storage for call in calls for storage in call.writes}
    if trains:
        changed |= {each.storage for call in calls for each in call.inputs if each.has_gradient}
    always = _in_every_step(steps, changed)
    stay = [call for call in computed if _is_fixed(call, changed) and _content(call) in always]
    is_measured = not trains and total_ns([stay]) > _EVERYTHING * total_ns([computed])
    if is_measured and all(_is_fixed(call, inputs) for call in computed):
        return []
    # A step may end at an update in the middle of a round.
    twice = [] if is_measured else _twice([calls] if trains else steps)
    always = _in_every_step(steps, changed | inputs if is_measured else changed) - {None}
    always -= _overwritten(
        calls, set.intersection(*({each.content for each in step} for step in steps))
    )
    same = [call for call in calls if _content(call) in always] if len(steps) > 1 else []
    twice = [call for call in twice if _content(call) not in always]
    same, twice = (_at_whole_calls(calls, found, called_at) for found in (same, twice))
    return [
        *noted("same in every step", steps, same),
        *noted("same twice", steps, twice),
        *noted("same rows", steps[1:], _rows_again(steps)),
    ]


def _in_every_step(steps: Steps, changed: set[int]) -> set[_Content | None]:
    """What depends on nothing that changes; None stands for results whose content is not known."""
    return set.intersection(
        *({_content(call) for call in step if _is_fixed(call, changed)} for step in steps)
    )


def _is_fixed(call: Call, changed: set[int]) -> bool:
    return call.origins is not None and not call.origins & changed


def _overwritten(calls: Sequence[Call], known: set[int]) -> set[_Content | None]:
    """Results that something unknown is written to: a program needs a new one each time."""
    written = {each for call in calls if call.content not in known for each in call.writes}
    return {
        _content(call)
        for call in calls
        if not written.isdisjoint(output.storage for output in call.outputs)
    }


def _at_whole_calls(
    calls: Sequence[Call], found: Sequence[Call], called_at: Mapping[int, Place | None]
) -> list[Call]:
    """Name the line that calls a module of which all results were there already."""
    known = {_content(call) for call in found} | {None}
    in_part = {call.model_call for call in calls if _content(call) not in known}
    lines = {number: line for number, line in called_at.items() if number not in in_part}
    return [replace(call, place=lines.get(call.model_call) or call.place) for call in found]


def _twice(rounds: Steps) -> list[Call]:
    """What a round computes again, with what that adds to its backward pass."""
    ran = {each.sequence for calls in rounds for each in calls if each.kind == "backward"}
    found: list[Call] = []
    for calls in rounds:
        counts = Counter(call.content for call in calls)
        overwritten = _overwritten(calls, {each for each, count in counts.items() if count > 1})
        first: dict[_Content, Call] = {}
        nodes: set[int] = set()
        for call in calls:
            content = _content(call)
            if content is not None and content in first:
                found.append(call)
                before = first[content]
                # A backward pass that goes through both then goes through one of them.
                if call.has_node and before.has_node and before.made in ran:
                    nodes.add(call.made)
            elif content is not None and content not in overwritten:
                first[content] = call
            elif call.kind == "backward" and call.sequence in nodes and call.computes:
                found.append(call)
    return found


def _content(call: Call) -> _Content | None:
    """What a result is known by; None if that is unknown, or if it follows from no tensor."""
    if call.checksum is None or not call.inputs or call.is_recomputed:
        return None
    return call.content, call.checksum


def _rows_again(steps: Steps) -> list[Call]:
    """Calls that get one row more in each step, with what the rows take that were there already."""
    found = []
    for before, after in pairwise(steps):
        for earlier, call in zip(before, after, strict=False):
            if earlier.name == call.name != "cat" and earlier.place == call.place:
                share = _share_of_rows(earlier.rows, call.rows)
                found.append(replace(call, ns=int(max(call.ns - CALL_NS, 0) * share)))
    return [call for call in found if call.ns]


def _share_of_rows(before: NDArray[Any] | None, after: NDArray[Any] | None) -> float:
    """The part of the rows that were there before; 0 unless each table has one more, the last."""
    if before is None or after is None or len(after) <= len(before):
        return 0.0
    tables = len(after) - len(before)
    if len(after) % tables or len(before) < _FEWEST_ROWS * tables:
        return 0.0
    first = after.reshape(tables, -1)[:, :-1].ravel()
    is_same = np.abs(first - before).max() <= _ROUNDING * np.abs(before).mean()
    return len(before) / len(after) if is_same else 0.0
