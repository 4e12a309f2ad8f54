"""The log of torch.compile that belongs to a profile, or that is all there is."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.compile_log import CompileLog

_PROCESS = regex(r"\((\d{1,19})\)$")
"""At the end of a process's name in Kineto's traces: `python (31901)`."""


@memoized
def compile_log(signals: Signals) -> CompileLog | None:
    """The log of the worker's process, or of another rank that compiles the same code.

    None if there is no log, or if those that lie beside the profile are of other runs.
    """
    trace = signals.trace
    if trace.compile_log is not None:
        return trace.compile_log
    logs = [log for log in signals.run.compile_logs if _began_before_end(log, trace)]
    of_process = [log for log in logs if log.process in _processes(trace)]
    return _latest(of_process) or _latest(
        [log for log in logs if log.rank is not None and log.rank == trace.source.rank]
    )


def is_only_log(signals: Signals) -> bool:
    """Whether there is no profile, only a log of torch.compile."""
    return signals.trace.compile_log is not None


def _latest(logs: Sequence[CompileLog]) -> CompileLog | None:
    """The one that began last: earlier ones are of earlier runs in the same directory."""
    return max(logs, key=lambda log: log.start_unix_ns or 0, default=None)


def _began_before_end(log: CompileLog, trace: Trace) -> bool:
    origin_ns = trace.source.origin_unix_ns
    if log.start_unix_ns is None or origin_ns is None:
        return True
    return log.start_unix_ns < origin_ns + trace.duration_ns


def _processes(trace: Trace) -> set[int]:
    names = trace.texts(trace.tracks.process)
    return {int(found[1]) for name in names if (found := _PROCESS.search(name))}
