"""The one way to compute something once: `@memoized`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import update_wrapper
from threading import Lock, RLock
from typing import Concatenate, Generic, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

Subject = TypeVar("Subject")
Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")


class _Slot(Generic[Value]):
    """Where one value goes, and the lock of the thread that computes it."""

    __slots__ = ("lock", "value")
    value: Value

    def __init__(self) -> None:
        self.lock = RLock()


class Memo(Generic[Subject, Arguments, Value]):
    """A function that remembers its values; see `memoized`."""

    def __init__(self, compute: Callable[Concatenate[Subject, Arguments], Value]) -> None:
        self._compute = compute
        self._slots: WeakKeyDictionary[Subject, dict[tuple[Hashable, ...], _Slot[Value]]]
        self._slots = WeakKeyDictionary()
        self._lock = Lock()
        update_wrapper(self, compute)

    def __call__(
        self, subject: Subject, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Value:
        """Return the value; compute it if this is the first call."""
        arguments = (*args, *kwargs.items())
        known = self._slots.get(subject)
        slot = known.get(arguments) if known is not None else None
        if slot is None:
            slot = self._slot(subject, arguments)
        if not hasattr(slot, "value"):
            with slot.lock:
                if not hasattr(slot, "value"):  # another thread may have computed it meanwhile
                    slot.value = self._compute(subject, *args, **kwargs)
        return slot.value

    def store(self, subject: Subject, value: Value) -> None:
        """Remember a value that is known already."""
        self._slot(subject, ()).value = value

    def _slot(self, subject: Subject, arguments: tuple[Hashable, ...]) -> _Slot[Value]:
        with self._lock:
            return self._slots.setdefault(subject, {}).setdefault(arguments, _Slot())


def memoized(
    compute: Callable[Concatenate[Subject, Arguments], Value],
) -> Memo[Subject, Arguments, Value]:
    """Compute a function's value once for each subject, whichever thread asks first.

    The subject is the first argument, usually a `Signals`; further arguments must be hashable.
    Values are shared, so they must be read-only. They live as long as the subject does, so they
    must not refer to it.
    """
    return Memo(compute)
