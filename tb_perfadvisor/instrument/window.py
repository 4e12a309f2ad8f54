"""Decides which steps of a run are measured: blocks of steps after the warm-up."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import pairwise
from math import ceil
from typing import Any, Final, Literal

_SETTLED: Final = 5
_SETTLED_WITHIN: Final = 2.0
"""Warm-up is over when the last steps take no more than twice their median: steps that compile or
tune kernels take many times as long."""
_FEWEST_STEPS: Final = 10
_ENOUGH_NS: Final = 1_000_000_000
"""Warm-up of fewer steps is enough if these took a second: caches and clock rates have settled."""
_LATEST_START: Final = 200
"""Steps that are uneven for longer are not warm-up."""
_FEWEST_IN_BLOCK: Final = 2

Moment = Literal["warming up", "begin", "block", "inside", "end", "after"]


class Window:
    """Is told of each step, and answers what its end means.

    The window begins where the command says, so that all runs measure the same steps; later by
    whole blocks if this run is still warming up there. The first run chooses both.
    """

    def __init__(self, plan: Mapping[str, Any]) -> None:
        """Prepare.

        Args:
            plan: `blocks` and `window_s`: how many blocks, and how long they are together, about;
                `begin` and `block_steps`, or None for both to let this run choose.
        """
        self._blocks: int = plan["blocks"]
        self._window_ns = float(plan["window_s"]) * 1e9
        self.begin: int | None = plan["begin"]
        """The number of steps before the window; None until it is known."""
        self.block_steps: int | None = plan["block_steps"]
        self._is_open = self._is_closed = False
        self._steps = 0
        self._ends_ns: list[int] = []
        self._first_end_ns = 0

    def step_ended(self, now_ns: int) -> Moment:
        """A step ended."""
        self._steps += 1
        if self._is_closed:
            return "after"
        if self._is_open:
            assert self.begin is not None
            assert self.block_steps is not None
            blocks, inside = divmod(self._steps - self.begin, self.block_steps)
            if inside:
                return "inside"
            self._is_closed = blocks == self._blocks
            return "end" if self._is_closed else "block"
        self._first_end_ns = self._first_end_ns or now_ns
        self._ends_ns = [*self._ends_ns[-_SETTLED:], now_ns]
        self._is_open = self._opens(now_ns)
        return "begin" if self._is_open else "warming up"

    def _opens(self, now_ns: int) -> bool:
        durations = [after - before for before, after in pairwise(self._ends_ns)]
        if len(durations) < _SETTLED:
            return False
        usual_ns = statistics.median(durations)
        is_long = self._steps >= _FEWEST_STEPS or now_ns - self._first_end_ns >= _ENOUGH_NS
        is_settled = max(durations) <= _SETTLED_WITHIN * usual_ns or self._steps >= _LATEST_START
        if not (is_long and is_settled):
            return False
        if self.begin is None or self.block_steps is None:
            self.begin = self._steps
            steps = ceil(self._window_ns / max(usual_ns, 1) / self._blocks)
            self.block_steps = max(steps, _FEWEST_IN_BLOCK)
            return True
        while self.begin < self._steps:
            self.begin += self.block_steps
        return self.begin == self._steps
