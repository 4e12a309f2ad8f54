"""Results that were there already: of the step before, or of the same step.

What depends only on parameters, buffers and constants is the same in every step, if none of them
changes. A parameter that is trained changes with each update, also where the steps that were looked
at happen to lie between two: so what depends on it is not the same in every step. Between two
updates it is, and if a step computes it again, for each part of an accumulated batch for example,
that is found as computed twice in a step. So is what a step computes twice from the same input.
"""

from __future__ import annotations

from typing import Final

from tb_perfadvisor.instrument.examination.calls import Call, Steps, all_calls, noted
from tb_perfadvisor.machine.facts import Observed

_EVERYTHING: Final = 0.9
"""A program that computes so much again, and does not train, repeats itself to be measured."""

_Content = tuple[int, int]
"""The number of a result, and its checksum: kernels that are no operators may have changed it."""


def repeated(steps: Steps) -> list[Observed]:
    """Results that are the same in every step, and results that a step computes twice."""
    always = _in_every_step(steps) if len(steps) > 1 else set()
    same = [call for call in all_calls(steps) if _content(call) in always]
    is_same = {id(call) for call in same}
    twice = [call for call in _twice(steps) if id(call) not in is_same]
    return [*noted("same in every step", steps, same), *noted("same twice", steps, twice)]


def _in_every_step(steps: Steps) -> set[_Content | None]:
    """What depends on nothing that changes; nothing if no input comes in at all.

    Such a program works on made-up data to be measured.
    """
    calls = [*all_calls(steps)]
    changed = frozenset(storage for call in calls for storage in call.writes)
    if any(call.kind in ("backward", "update") for call in calls):
        changed |= {each.storage for call in calls for each in call.inputs if each.has_gradient}
    elif all(
        call.origins is not None for call in calls if call.kind == "forward" and call.computes
    ):
        return set()
    seen = [
        {_content(call) for call in step if call.origins is not None and not call.origins & changed}
        for step in steps
    ]
    return set.intersection(*seen) - {None}


def _twice(steps: Steps) -> list[Call]:
    """What a step computes again, with what that adds to its backward pass."""
    found: list[Call] = []
    again_ns = first_ns = 0
    for step in steps:
        first: dict[_Content, Call] = {}
        is_repeated: set[_Content] = set()
        nodes: set[int] = set()
        for call in step:
            content = _content(call)
            if content is not None and content in first:
                found.append(call)
                again_ns += call.ns
                first_ns += 0 if content in is_repeated else first[content].ns
                is_repeated.add(content)
                nodes |= {call.made} if call.has_node else set()
            elif content is not None:
                first[content] = call
            # The last backward pass goes through both, and after the change through one of them.
            elif call.kind == "backward" and call.sequence in nodes and call.computes:
                found.append(call)
    trains = any(call.kind in ("backward", "update") for call in all_calls(steps))
    whole_ns = sum(call.ns for call in all_calls(steps) if call.kind == "forward")
    if not trains and again_ns + first_ns > _EVERYTHING * whole_ns:
        return []
    return found


def _content(call: Call) -> _Content | None:
    """What a result is known by; None if that is unknown, or if it follows from no tensor."""
    if call.checksum is None or not call.inputs or call.is_recomputed:
        return None
    return call.content, call.checksum
