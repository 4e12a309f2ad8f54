"""Compiling takes long, and each run does it again."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.compile_log import (
    caches_table,
    counted,
    frames_table,
    phases_table,
)
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.recording.compile_log import compile_log
from tb_perfadvisor.trace.compile_log import CompileLog
from tb_perfadvisor.units import format_duration


class LongCompilation(Rule):
    """The compiler spends seconds at the start of each run.

    What it finds
    -------------
    Compile time of torch.compile, by its own log (`TORCH_TRACE`): by function, by phase of the
    compiler, and how often the caches of compiled code had what was needed.

    Why it matters
    --------------
    Compiling large models takes minutes. Restarts, evaluation jobs and every worker of a server
    pay again if the compiled code is not kept.

    How it is measured
    ------------------
    The sum of what the compiler states for each compilation, including backward graphs that are
    compiled at their first use. It is paid once per run, not per step, so there is no saving per
    step. The time of a phase is without the phases inside it; compilers in other threads or
    processes may overlap.

    When to ignore
    --------------
    When runs are long and rarely restarted.

    How to verify
    -------------
    The log of the next run counts hits of the caches, and less compile time.

    References:
    ----------
    PyTorch tutorials, "Compile Time Caching in torch.compile" and "Reducing torch.compile cold
    start compilation time with regional compilation".
    """

    id = "long-compilation"
    title = "Keep compiled code between runs"
    category = "launch"
    needs = (Need.COMPILE_LOG,)
    is_preview = False

    minimum_ns = Limit(2e9, "ns", "Importing PyTorch takes as long.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when compiling takes long."""
        log = compile_log(signals)
        if log is None or log.known_ns < self.minimum_ns:
            return
        duration = format_duration(log.known_ns)
        yield Finding(
            instance=f"{counted(len(log.compilations), 'compilation')} took {duration}",
            summary=(
                f"torch.compile spent {duration} on "
                f"{counted(len(log.compilations), 'compilation')}{_cache_clause(log)}."
            ),
            severity="low",
            evidence=(frames_table(log), *phases_table(log), *caches_table(log)),
            remedies=advise("compile-cache", "compile-blocks"),
        )


def _cache_clause(log: CompileLog) -> str:
    """What the caches had, as a clause."""
    if not log.caches:
        return ""
    hits, misses = (sum(getattr(use, key) for use in log.caches) for key in ("hits", "misses"))
    bypasses = sum(use.bypasses for use in log.caches)
    clause = f"; its caches had what was needed {hits:,} of {hits + misses:,} times"
    return f"{clause}, and were not used {bypasses:,} times" if bypasses else clause
