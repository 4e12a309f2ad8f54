"""Limits of one analysis: its time, and the memory of its process."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from msgspec import Struct

from tb_perfadvisor.errors import PerfAdvisorError

TIME_LIMIT_VARIABLE = "PERFADVISOR_TIME_LIMIT_S"
MEMORY_LIMIT_VARIABLE = "PERFADVISOR_MEMORY_LIMIT_GIB"
DEFAULT_TIME_LIMIT_S = 600.0
# Enough for profiles of several gigabytes, while a laptop stays usable.
DEFAULT_MEMORY_LIMIT_BYTES = 8 << 30
# Beyond this a system would write memory to the disk, and stand still.
_MACHINE_SHARE = 0.8
# What fits into the 64 bits of a limit of a process.
_MOST_GIB = 2.0**32


class TimeLimitError(PerfAdvisorError):
    """An analysis that took longer than its limit."""


class _TimeIsOver(BaseException):
    """Ends an analysis. No `except Exception` in it may hold that up."""


class Limits(Struct, frozen=True):
    """The limits of one analysis."""

    time_s: float = DEFAULT_TIME_LIMIT_S
    memory_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES
    """0 for no limit."""


NO_LIMITS = Limits(math.inf, 0)


def limits_from_environment(warn: Callable[[str], None]) -> Limits:
    """The limits set by the environment, or the defaults.

    `warn` is called with a sentence about a variable that is ignored.
    """
    time_s = _positive(TIME_LIMIT_VARIABLE, warn) or DEFAULT_TIME_LIMIT_S
    time_s = min(time_s, threading.TIMEOUT_MAX)
    gib = _positive(MEMORY_LIMIT_VARIABLE, warn)
    if gib is not None:
        return Limits(time_s, int(min(gib, _MOST_GIB) * (1 << 30)))
    return Limits(time_s, within_machine(DEFAULT_MEMORY_LIMIT_BYTES))


def within_machine(memory_bytes: int, processes: int = 1) -> int:
    """The memory limit, or less if several processes together would exceed the machine's."""
    total_bytes = _machine_memory_bytes()
    if total_bytes is None:
        return memory_bytes
    return min(memory_bytes, int(total_bytes * _MACHINE_SHARE) // processes)


def _positive(variable: str, warn: Callable[[str], None]) -> float | None:
    text = os.environ.get(variable)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        warn(f"{variable}={text} is ignored: not a positive number")
        return None
    return value


def _machine_memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


@contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """Stop what runs in the context after a time.

    It has no effect outside of the main thread, nor on Windows, where nothing interrupts a
    calculation.

    The limit is wall-clock time, and may be infinite.

    Raises:
        TimeLimitError: When the time is over.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or math.isinf(limit_s) or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(signum: int, frame: FrameType | None) -> None:
        raise _TimeIsOver

    before = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, min(limit_s, threading.TIMEOUT_MAX))
    try:
        yield
    except _TimeIsOver:
        raise TimeLimitError(
            f"its analysis took longer than {limit_s:g} s and was stopped.",
            hint="Record fewer steps, or give it more time: --time-limit SECONDS.",
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)  # an alarm of the caller's


@contextmanager
def memory_limit(limit_bytes: int) -> Iterator[None]:
    """Limit the address space of this process while in the context; 0 means no limit.

    Without it, a system that runs out of memory stands still before it ends a process. It has no
    effect on Windows and macOS.
    """
    try:
        import resource

        before = resource.getrlimit(resource.RLIMIT_AS)
    except (ImportError, OSError, AttributeError):
        yield
        return
    limit_memory(limit_bytes)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def limit_memory(limit_bytes: int) -> None:
    """Limit the address space of this process and its children; 0 means no limit."""
    if limit_bytes <= 0:
        return
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard != resource.RLIM_INFINITY:
            limit_bytes = min(limit_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, hard))
    except (ImportError, OSError, ValueError, OverflowError, AttributeError):
        # Not possible on Windows and macOS, where only the time limit applies.
        return
