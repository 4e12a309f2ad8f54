"""Results that are computed again from the same inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from tb_perfadvisor.instrument.examination.calls import Call
from tb_perfadvisor.instrument.examination.needed import is_view
from tb_perfadvisor.instrument.examination.noted import Steps, all_calls, noted
from tb_perfadvisor.machine.facts import Observed

_EVERYTHING: Final = 0.9
"""A program that does not train, and computes so much again, repeats itself to be measured."""


def repeated(steps: Steps) -> list[Observed]:
    """Results that are the same in every step, and results that a step computes twice."""
    forward_ns = sum(call.ns for step in steps for call in step if call.kind == "forward")
    same = [*_in_every_step(steps)] if len(steps) > 1 else []
    trains = any(call.kind in ("backward", "update") for call in all_calls(steps))
    if not trains and sum(call.ns for call in same) > _EVERYTHING * forward_ns:
        same = []
    is_same = {id(call) for call in same}
    twice = (call for call in _twice(steps) if id(call) not in is_same)
    return [*noted("same in every step", steps, same), *noted("same twice", steps, twice)]


def _in_every_step(steps: Steps) -> Iterator[Call]:
    seen = [{key for call in step if (key := _key(call)) is not None} for step in steps]
    always = set.intersection(*seen)
    for step in steps:
        for call in step:
            if _key(call) in always:
                yield call


def _twice(steps: Steps) -> Iterator[Call]:
    for step in steps:
        before: Counter[object] = Counter()
        nodes: set[int] = set()
        for call in step:
            key = _key(call, ("forward", "backward"))
            again = key is not None and before[key] > 0
            before[key] += 1
            if again and call.tracks_gradients and any(each.has_gradient for each in call.inputs):
                nodes.add(call.made)
            # The last backward pass goes through both, and through a single one after the change.
            is_passed = call.kind == "backward" and call.sequence in nodes
            if again or (is_passed and not call.tracks_gradients and not is_view(call)):
                yield call


def _key(call: Call, kinds: Sequence[str] = ("forward",)) -> object:
    """What the result follows from; None if that is unknown, or if the result has no inputs."""
    if call.kind not in kinds or call.is_view or call.is_random or not call.inputs:
        return None
    digests = tuple(each.digest for each in call.inputs)
    if None in digests:
        return None
    return call.name, call.scalars, digests
