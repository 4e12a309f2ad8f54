"""Decides when steps are looked at, and keeps what was found."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any, Final

from tb_perfadvisor.machine.facts import Examined, FailedLook

_FEWEST: Final = 4
"""What is the same in so many steps is not so by chance."""
_ENOUGH_AFTER_S: Final = ((5.0, 1), (3.0, 2))
"""So many steps are enough where they have taken that long."""


class Examiner:
    """Looks at a few steps of a PyTorch program, once."""

    def __init__(self) -> None:
        """Nothing is looked at before `begin`."""
        self._mode: Any = None
        self._ends: list[int] = []
        self._began_s = 0.0
        self._is_done = False
        self._steps = _FEWEST
        self.found: Examined | None = None
        """What was found; None before the end."""

    @property
    def is_running(self) -> bool:
        """Whether the step under way is looked at."""
        return self._mode is not None

    def begin(self, steps: int) -> None:
        """A step begins, and with it the look; once, and where nothing can be disturbed."""
        if self._is_done or not _is_possible():
            return
        self._is_done = True
        try:
            from tb_perfadvisor.instrument.examination.watching import Watching

            mode = Watching()
        except Exception as error:  # the program must run as without it
            self.found = Examined(failed=(FailedLook.of("operators", error),))
            return
        self._steps = max(steps, _FEWEST)
        self._began_s = time.monotonic()
        self._mode = mode
        self._mode.__enter__()
        _stay_after_inference_mode(self._mode)

    def step(self) -> bool:
        """A step ended; returns whether the look has, too."""
        self._ends.append(len(self._mode.calls))
        passed_s = time.monotonic() - self._began_s
        enough = [steps for seconds, steps in _ENOUGH_AFTER_S if passed_s > seconds]
        if self._mode.is_on and len(self._ends) < min(enough, default=self._steps):
            return False
        self.end()
        return True

    def end(self) -> None:
        """Look no more, and keep what was found in whole steps."""
        mode, self._mode = self._mode, None
        if mode is None:
            return
        mode.is_on = False
        failed = mode.failed.get("operators")
        if not _leave(mode):
            failed = FailedLook.of("operators", "a mode of the program's own was on top")
        if failed is not None:
            self.found = Examined(failed=(failed,))
        elif self._ends:
            from tb_perfadvisor.instrument.examination.findings import examined

            begins = [0, *self._ends[:-1]]
            steps = [mode.calls[a:b] for a, b in zip(begins, self._ends, strict=True)]
            self.found = examined([step for step in steps if step], mode)


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
    leave = guard.__exit__

    def leave_and_set(self: Any, *error: Any) -> Any:
        result = leave(self, *error)
        if _get_current_dispatch_mode() is not mode:  # in another thread, say
            return result
        if mode.is_on:
            mode.__exit__(None, None, None)
            mode.__enter__()
        elif not torch.is_inference_mode_enabled():
            mode.__exit__(None, None, None)
            guard.__exit__ = leave
        return result

    mode.forget = partial(setattr, guard, "__exit__", leave)
    guard.__exit__ = leave_and_set


def _leave(mode: Any) -> bool:
    """Take the mode off the stack; it stays, and does nothing, below a mode of the program."""
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    if _get_current_dispatch_mode() is not mode:
        return False
    if not torch.is_inference_mode_enabled():
        mode.forget()
        mode.__exit__(None, None, None)
    return True
