"""What a loop does after each step, or seldom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pairs import Role

_SELDOM = 200


def interval(role: Role) -> int:
    """After how many steps: more than any loop here has, in the fixed one."""
    return 1 if role == "slow" else _SELDOM


def every(steps: int, action: Callable[[], Any]) -> Callable[[], None]:
    """Acts on every so manieth call."""
    calls = 0

    def act() -> None:
        nonlocal calls
        calls += 1
        if calls % steps == 0:
            action()

    return act
