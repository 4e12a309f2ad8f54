"""Tells what runs in every step from what runs every few steps, or between epochs.

The first steps show through which functions, lines and loops of the user's code the program goes to
the end of a step. Later, a stack that leaves that path elsewhere is doing something else: under a
condition with a remainder (`step % 100 == 0`), or behind the loop over the batches of an epoch.
"""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Final, Literal

from tb_perfadvisor.instrument.user_code import (
    conditions_with_remainders,
    loop_around,
    loops_of,
    user_frames,
)

Apart = Literal["every few steps", "between epochs"]
_MOST: Final = 50


class StepPath:
    """The functions and lines from the top of the program to the end of a step."""

    def __init__(self) -> None:
        """No step has ended yet."""
        self._lines: dict[CodeType, set[int]] = {}
        self._own: CodeType | None = None
        """The function that has the innermost loop around the end of a step."""

    def add(self, frame: FrameType | None) -> None:
        """A step ends in a call on this stack."""
        found = loop_around(frame)
        self._own = found[0].f_code if found is not None else None
        for caller in user_frames(frame):
            if len(self._lines) < _MOST:
                self._lines.setdefault(caller.f_code, set()).add(caller.f_lineno)

    def apart(self, frame: FrameType | None) -> tuple[FrameType, Apart] | None:
        """The call that is no part of every step, on a stack; None if there is none."""
        for caller in user_frames(frame):
            steps = self._lines.get(caller.f_code)
            if steps is not None:
                kind = self._kind(caller, steps)
                return (caller, kind) if kind is not None else None
        return None

    def _kind(self, caller: FrameType, steps: set[int]) -> Apart | None:
        name, line = caller.f_code.co_filename, caller.f_lineno
        if line in steps:
            return None
        for first, last in conditions_with_remainders(name):
            if first <= line <= last and not any(first <= each <= last for each in steps):
                return "every few steps"
        around = [
            (first, last)
            for first, last in loops_of(name)
            if any(first <= each <= last for each in steps)
        ]
        inside = [first for first, last in around if first <= line <= last]
        is_own = caller.f_code is self._own
        # In the loop that ends steps, all else belongs to each of them.
        if not inside or (is_own and max(first for first, _ in around) in inside):
            return None
        return "between epochs"
