"""Something that a loop does after each step, or rarely."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pairs import Role

_RARELY = 200


def interval(role: Role) -> int:
    """The interval in steps; in the fixed variant, longer than any loop here."""
    return 1 if role == "slow" else _RARELY


def every(steps: int, action: Callable[[], Any]) -> Callable[[], None]:
    """Acts on every n-th call."""
    calls = 0

    def act() -> None:
        nonlocal calls
        calls += 1
        if calls % steps == 0:
            action()

    return act
