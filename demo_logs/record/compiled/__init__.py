"""Profiles of programs that were compiled for a TPU but never ran.

XLA's compiler says which operations a TPU would execute, in which order, and how long each takes
by its own estimate. This package plays that schedule and writes it as a TPU's profiler would. The
files are marked as synthetic: their durations are estimates, not measurements.
"""

from __future__ import annotations

from demo_logs.record.compiled.profile import Dispatch, write_compiled
from demo_logs.record.compiled.schedule import CompiledOperation, CompiledSchedule
from demo_logs.record.compiled.timeline import Execution, Timeline, play

__all__ = [
    "CompiledOperation",
    "CompiledSchedule",
    "Dispatch",
    "Execution",
    "Timeline",
    "play",
    "write_compiled",
]
