"""Which of the calls that a program makes repeatedly end its steps.

The best that is seen: a batch of `fit`, else a step of an optimizer, else gradients (`backward`,
`GradientTape`), else a training function, else a call of a model or of a compiled function. So the
batches of an evaluation are steps only of programs that do not train.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final

_SWITCH_AFTER: Final = 10
"""So many ends in a row of another source of the same rank, and the program has moved on to it: to
another optimizer, or from evaluating one model to evaluating another."""
_GONE_AFTER: Final = 20
"""So many ends of several other sources of the same rank without one of the source that counts, and
the program makes new ones all the time, such as a model for each client: all of them count."""
_MOST_KEYS: Final = 1_000


class Rank(IntEnum):
    """How sure it is that a call ends a step; lower is better."""

    BATCH = 0
    OPTIMIZER = 1
    GRADIENT = 2
    TRAINING_FUNCTION = 3
    CALL = 4


class StepSources:
    """Is told of each such call when it has returned."""

    def __init__(self, on_step: Callable[[], None], on_better: Callable[[Rank], None]) -> None:
        """Prepare.

        Args:
            on_step: Called at the end of each step.
            on_better: Called when steps are seen for the first time, or by a better rank than so
                far: what was recorded until then was not of steps.
        """
        self._on_step = on_step
        self._on_better = on_better
        self.rank: Rank | None = None
        """The rank of the source whose calls end steps; None before the first."""
        self._key: object = None
        self._called: set[tuple[Rank, object]] = set()
        self._seen: tuple[Rank, object] | None = None
        self._in_a_row = 0
        self._others: list[object] = []
        """Which ended since the source that counts did."""
        self._counts_all = False

    def forget(self) -> None:
        """The calls that ended steps have stopped: the next calls that repeat may end them."""
        self.rank, self._key, self._seen = None, None, None
        self._in_a_row = 0
        self._others.clear()
        self._counts_all = False
        self._called.clear()

    def ended(self, rank: Rank, key: object) -> bool:
        """A call has returned.

        Args:
            rank: Of its kind.
            key: What tells it from others of this kind, such as the optimizer.

        Returns:
            Whether it ended a step.
        """
        if self.rank is not None and rank > self.rank:
            return False
        if rank != self.rank:
            # One call of a model may be a test of its shapes: its second call starts a loop.
            if rank >= Rank.TRAINING_FUNCTION and (rank, key) not in self._called:
                if len(self._called) < _MOST_KEYS:
                    self._called.add((rank, key))
                return False
            self.rank, self._key = rank, key
            self._counts_all = False
            self._on_better(rank)
        elif key != self._key and not self._counts_all:
            self._others.append(key)
            if len(self._others) >= _GONE_AFTER and len(set(self._others)) > 1:
                self._counts_all = True
                self._on_better(rank)
            self._in_a_row = self._in_a_row + 1 if self._seen == (rank, key) else 1
            self._seen = (rank, key)
            if self._in_a_row < _SWITCH_AFTER:
                return False
            self._key = key
        self._in_a_row = 0
        self._others.clear()
        self._on_step()
        return True
