"""Notes on logs of torch.compile, beside a profile or alone."""

from __future__ import annotations

from tb_perfadvisor.note import Note
from tb_perfadvisor.rules.evidence.compile_log import log_in_short
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.recording.compile_log import compile_log

ONLY_LOG = Note(
    "compile-log",
    "info",
    "This is a log of torch.compile, not a profile: it shows what the compiler did, and nothing of "
    "the steps. Time between compilations is unexplained.",
    "Record the program with torch.profiler into the same directory. Then the report says what "
    "graph breaks and recompilations cost.",
)


def on_compile_log(signals: Signals) -> list[Note]:
    """What the log beside a profile holds, or that those that lie there are of other runs."""
    logs = signals.run.compile_logs
    if not logs:
        return []
    log = compile_log(signals)
    if log is None:
        return [
            Note(
                "compile-log",
                "info",
                f"Beside the profile lies a log of torch.compile ({logs[0].path}), but of another "
                "process, so it was not used.",
                "Write the log of each run into its own directory.",
            )
        ]
    whose = "" if log.rank is None else f" of rank {log.rank}"
    message = f"torch.compile's log{whose} ({log.path}): {log_in_short(log)}."
    return [Note("compile-log", "info", message)]
