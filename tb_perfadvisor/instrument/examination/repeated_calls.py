"""Finds calls of TensorFlow's functions and models that get the same tensors again.

Tensors do not change. So a call with the very same ones returns what the call before has returned,
unless variables or random numbers come in. A few results are compared to know.
"""

from __future__ import annotations

import sys
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from tb_perfadvisor.instrument.examination.calls import Call, Steps, all_calls, noted
from tb_perfadvisor.instrument.user_code import place_of, user_frames
from tb_perfadvisor.machine.facts import Examined, Observed

# What depends only on parameters, buffers and constants is the same in every step, if none of them
# changes. A parameter that is trained changes with each update, also where the steps that were
# looked at happen to lie between two: so what depends on it is not the same in every step. Between
# two updates it is, and if a step computes it again, for each part of an accumulated batch for
# example, that is found as computed twice in a step. So is what a step computes twice from the same
# input.

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


_COMPARED: Final = 5
"""So many results of a function are compared; then it is trusted."""
_MOST_BYTES: Final = 1 << 24
"""Of a result that is kept for the next comparison."""
_LEAST_CALLS: Final = 20
_LEAST_SHARE: Final = 0.05
_MOST_SHARE: Final = 0.9
"""A program that repeats all of its work measures how long it takes."""
_MOST_OWNERS: Final = 64


class _Owner:
    """What is called, and what came of it."""

    def __init__(self, owner: Any) -> None:
        self.name = _name_of(owner)
        self.arguments: list[Any] = []
        """Weak references, and what is no tensor."""
        self.result: list[Any] | None = None
        self.compared = 0
        self.is_repeatable = True
        self.seconds: defaultdict[tuple[str, int, str], float] = defaultdict(float)
        """Of calls whose result was there already, by line."""
        self.calls = 0


class RepeatedCalls:
    """Is told of all outermost calls; what it found reads like what an `Examiner` found."""

    is_running = False

    def __init__(self) -> None:
        self._owners: dict[int, _Owner] = {}
        self._seconds = 0.0
        self._calls = 0

    def begin(self, steps: int) -> None:
        """Calls are looked at all the time."""

    def step(self) -> bool:
        """Nothing ends with a step."""
        return True

    def end(self) -> None:
        """What was found up to now stays."""

    def called(
        self, owner: Any, arguments: Any, result: Any, seconds: float, frame: FrameType | None
    ) -> None:
        """A call has returned."""
        known = self._owners.get(id(owner))
        if known is None:
            # The first call traces the function.
            if len(self._owners) < _MOST_OWNERS:
                self._owners[id(owner)] = known = _Owner(owner)
                known.arguments = [_kept(each) for each in _leaves(arguments)]
            return
        self._seconds += seconds
        self._calls += 1
        if not known.is_repeatable:
            return
        leaves, results = list(_leaves(arguments)), list(_leaves(result))
        if _are_same(known.arguments, leaves) and results:
            if known.compared < _COMPARED and known.result is not None:
                known.compared += 1
                known.is_repeatable = _are_equal(known.result, results)
            if known.is_repeatable and known.compared:
                known.calls += 1
                user = next(user_frames(frame), None)
                known.seconds[place_of(user) if user is not None else ("", 1, "")] += seconds
        else:
            known.arguments = [_kept(each) for each in leaves]
        if known.compared < _COMPARED:
            size = sum(map(_size_bytes, results))
            known.result = results if size <= _MOST_BYTES else None
        else:
            known.result = None

    @property
    def found(self) -> Examined | None:
        """The functions whose results were there already; None if nothing was called."""
        if not self._calls:
            return None
        observed = [
            Observed(
                kind="same twice",
                operator=owner.name,
                path=path,
                line=line,
                function=function,
                share=seconds / self._seconds,
                calls=owner.calls,
            )
            for owner in self._owners.values()
            if owner.is_repeatable and owner.calls >= _LEAST_CALLS
            for (path, line, function), seconds in owner.seconds.items()
            if seconds >= _LEAST_SHARE * self._seconds
        ]
        if sum(each.share for each in observed) > _MOST_SHARE:
            observed = []
        return Examined(
            steps=1,
            seconds=self._seconds,
            calls=self._calls,
            observed=tuple(observed),
        )


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        for each in tree:
            yield from _leaves(each)
    else:
        yield tree


def _kept(leaf: Any) -> Any:
    """What tells whether the same comes again, without keeping it alive."""
    if _is_tensor(leaf):
        with suppress(TypeError):
            return weakref.ref(leaf)
    return leaf if isinstance(leaf, (bool, int, float, str, type(None))) else object()


def _are_same(before: list[Any], now: list[Any]) -> bool:
    """Whether all are the same, and a tensor with more than one element is among them."""
    if len(before) != len(now):
        return False
    has_tensor = False
    for kept, leaf in zip(before, now, strict=True):
        if isinstance(kept, weakref.ref):
            tensor = kept()
            if tensor is None or tensor is not leaf:
                return False
            has_tensor |= bool(tensor.shape.rank)
        elif type(kept) is not type(leaf) or kept != leaf:
            return False
    return has_tensor


def _is_tensor(leaf: Any) -> bool:
    tensorflow: Any = sys.modules.get("tensorflow")
    # A variable may change.
    return tensorflow is not None and isinstance(leaf, tensorflow.Tensor)


def _size_bytes(leaf: Any) -> int:
    return leaf.dtype.size * (leaf.shape.num_elements() or 0) if _is_tensor(leaf) else 0


def _are_equal(before: list[Any], now: list[Any]) -> bool:
    import numpy as np  # TensorFlow has loaded it

    if len(before) != len(now) or not all(map(_is_tensor, (*before, *now))):
        return False
    pairs = zip(before, now, strict=True)
    return all(np.array_equal(one.numpy(), other.numpy()) for one, other in pairs)


def _name_of(owner: Any) -> str:
    name = getattr(owner, "__name__", None) or getattr(owner, "name", None)
    return str(name or type(owner).__name__)[:200]
