"""Reads the logs of torch.compile that lie beside a profile."""

from __future__ import annotations

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.captures import Capture
from tb_perfadvisor.ingest.files.access import open_file
from tb_perfadvisor.note import Note
from tb_perfadvisor.trace import Source
from tb_perfadvisor.trace.compile_log import CompileLog

_MOST_LOGS = 16
"""Ranks compile the same code, and a log of a long run has some hundred megabytes."""


def read_compile_logs(
    root: str, capture: Capture
) -> tuple[tuple[CompileLog, ...], tuple[Note, ...]]:
    """The logs beside a capture, and notes on those that were not read."""
    if not capture.compile_logs:
        return (), ()
    from tb_perfadvisor.ingest.compile_log.reader import read_records_only

    logs: list[CompileLog] = []
    notes: list[Note] = []
    for file in capture.compile_logs[:_MOST_LOGS]:
        source = Source(path=file.path, format="", rank=file.rank)
        try:
            with open_file(root, file) as stream:
                logs.append(read_records_only(stream, source))
        except PerfAdvisorError as error:
            message = f"{file.path} was left out: {error.message}"
            notes.append(Note("unsupported-file", "warning", message, error.hint))
    more = len(capture.compile_logs) - _MOST_LOGS
    if more > 0:
        notes.append(
            Note(
                "compile-log",
                "info",
                f"Of {len(capture.compile_logs):,} logs of torch.compile, the first {_MOST_LOGS} "
                "were read.",
            )
        )
    return tuple(logs), tuple(notes)
