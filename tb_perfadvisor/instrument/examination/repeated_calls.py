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

from tb_perfadvisor.instrument.user_code import place_of, user_frames
from tb_perfadvisor.machine.facts import Examined, Observed

_COMPARED: Final = 5
"""So many results of a function are compared; then it is trusted."""
_MOST_BYTES: Final = 1 << 24
"""Of a result that is compared."""
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
        self.content_of_result: int | None = None
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
        leaves = list(_leaves(arguments))
        content = _content(list(_leaves(result))) if known.compared < _COMPARED else None
        if _are_same(known.arguments, leaves):
            if content is not None and known.content_of_result is not None:
                known.compared += 1
                known.is_repeatable = content == known.content_of_result
            if known.is_repeatable and known.compared:
                known.calls += 1
                user = next(user_frames(frame), None)
                known.seconds[place_of(user) if user is not None else ("", 1, "")] += seconds
        else:
            known.arguments = [_kept(each) for each in leaves]
        known.content_of_result = content

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


def _content(results: list[Any]) -> int | None:
    """A number for what some tensors hold; None if there are others, or much to read."""
    if not results or not all(map(_is_tensor, results)):
        return None
    size = sum(each.dtype.size * (each.shape.num_elements() or 0) for each in results)
    return hash(tuple(each.numpy().tobytes() for each in results)) if size <= _MOST_BYTES else None


def _name_of(owner: Any) -> str:
    name = getattr(owner, "__name__", None) or getattr(owner, "name", None)
    return str(name or type(owner).__name__)[:200]
