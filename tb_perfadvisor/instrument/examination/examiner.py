"""Decides when steps are looked at, and keeps what was found."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from statistics import median_low
from typing import TYPE_CHECKING, Any, Final

from tb_perfadvisor.instrument.examination.clocks import thread_faults
from tb_perfadvisor.instrument.user_code import loop_around
from tb_perfadvisor.machine.facts import Examined, FailedLook

if TYPE_CHECKING:
    from tb_perfadvisor.instrument.examination.calls import Call, Place

_Operators = frozenset[tuple[str, "Place | None"]]
"""Those that a step calls, and the lines that call them."""

_FEWEST: Final = 4
"""What is the same in so many steps is not so by chance."""
_MOST_LOOKS: Final = 5
"""A program whose steps are never the same is not looked at all the time."""
_ENOUGH_AFTER_S: Final = ((5.0, 1), (3.0, 2))
"""So many steps are enough where they have taken that long."""


class Examiner:
    """Looks at a few steps of a PyTorch program, and again where other operators run.

    A look belongs to a loop. To know whether a program is still in it, a step is compared with
    those that were looked at: by which operators its lines call.
    """

    def __init__(self, *, may_serve: bool = False) -> None:
        """Nothing is looked at before `begin`.

        A program that may serve does so if no loop of its own is around its steps.
        """
        self._may_serve = may_serve
        self._mode: Any = None
        self._ends: list[int] = []
        self._began_s = 0.0
        self._steps = _FEWEST
        self._faults: deque[int] = deque(maxlen=10)
        """New pages of memory so far, at the ends of the last steps before the look."""
        self._looks: list[tuple[list[_Operators], Examined]] = []
        """The steps that were looked at, and what was found in them."""
        self.found: Examined | None = None
        """What was found in steps like those since `begin`; None before the end."""

    @property
    def is_running(self) -> bool:
        """Whether the step under way is looked at."""
        return self._mode is not None

    def begin(self, steps: int) -> None:
        """A step begins, and with it the look, where nothing can be disturbed."""
        if self.found is not None and any(each.look == "operators" for each in self.found.failed):
            return  # nothing can be seen, and it says why
        self.found = None
        if len(self._looks) >= _MOST_LOOKS or not _is_possible():
            return
        try:
            from tb_perfadvisor.instrument.examination.watching import Watching

            is_called = self._may_serve and loop_around(sys._getframe(1)) is None
            mode = Watching(has_requests=is_called)
        except Exception as error:  # the program must run as without it
            self.found = Examined(failed=(FailedLook.of("operators", error),))
            return
        self._ends = []
        self._steps = max(steps, _FEWEST)
        self._began_s = time.monotonic()
        self._mode = mode
        self._mode.__enter__()
        _stay_after_inference_mode(self._mode)

    def step(self) -> bool:
        """A step ended; returns whether a look has, too."""
        if self._mode is None:
            self._faults.append(thread_faults())
            return False
        self._ends.append(len(self._mode.calls))
        if len(self._ends) == 1:
            operators = _operators(self._mode.calls)
            known = next((found for steps, found in self._looks if operators in steps), None)
            if known is not None:
                self._leave()
                self.found = known
                return True
        passed_s = time.monotonic() - self._began_s
        enough = [steps for seconds, steps in _ENOUGH_AFTER_S if passed_s > seconds]
        if self._mode.is_on and len(self._ends) < min(enough, default=self._steps):
            return False
        self.end()
        return True

    def end(self) -> None:
        """Look no more, and keep what was found in whole steps."""
        mode = self._mode
        if mode is None:
            return
        failed = self._leave()
        if failed is not None:
            self.found = Examined(failed=(failed,))
        elif self._ends:
            from tb_perfadvisor.instrument.examination.findings import examined

            begins = [0, *self._ends[:-1]]
            steps = [mode.calls[a:b] for a, b in zip(begins, self._ends, strict=True)]
            faults = [after - before for before, after in pairwise(self._faults)]
            usual_faults = median_low(faults) if len(faults) > 1 else 0
            self.found = examined([step for step in steps if step], mode, usual_faults)
            self._looks.append(([_operators(step) for step in steps], self.found))

    def drop(self) -> None:
        """Look no more, and find nothing: the steps were of two loops."""
        if self._mode is not None:
            self._leave()

    def _leave(self) -> FailedLook | None:
        """Take the mode off; returns why operators were not seen, if they were not."""
        mode, self._mode = self._mode, None
        mode.is_on = False
        if not _leave(mode):
            return FailedLook.of("operators", "a mode of the program's own was on top")
        failed: FailedLook | None = mode.failed.get("operators")
        return failed


def _operators(calls: Sequence[Call]) -> _Operators:
    return frozenset((call.name, call.place) for call in calls)


def _is_possible() -> bool:
    """Whether this is a plain program of PyTorch: one process, and nothing is compiled."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return False
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return not counters.get("stats", {}).get("unique_graphs")


def _stay_after_inference_mode(mode: Any) -> None:
    """Enter or leave a mode where the program leaves `torch.inference_mode`.

    Leaving that restores what was called when it was entered: a mode that was entered since is
    called no more, and one that was left since would be called.
    """
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    guard: Any = torch.inference_mode
    enter, leave = guard.__enter__, guard.__exit__

    def enter_and_count(self: Any) -> Any:
        mode.guards += _get_current_dispatch_mode() is mode
        return enter(self)

    def leave_and_set(self: Any, *error: Any) -> Any:
        result = leave(self, *error)
        mode.guards = max(mode.guards - 1, 0)
        if _get_current_dispatch_mode() is not mode:  # in another thread, say
            return result
        if mode.is_on:
            mode.__exit__(None, None, None)
            mode.__enter__()
        elif not torch.is_inference_mode_enabled():
            mode.__exit__(None, None, None)
            mode.forget()
        return result

    def forget() -> None:
        guard.__enter__, guard.__exit__ = enter, leave

    mode.forget = forget
    guard.__enter__, guard.__exit__ = enter_and_count, leave_and_set


def _leave(mode: Any) -> bool:
    """Take the mode off the stack; it stays, and does nothing, below a mode of the program."""
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    if _get_current_dispatch_mode() is not mode:
        return False
    # What was entered since the program's last guard can be left before it.
    if not mode.guards or not torch.is_inference_mode_enabled():
        mode.forget()
        mode.__exit__(None, None, None)
    return True
