"""The file that tracebacks of bugs are written to."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from tb_perfadvisor.errors import logger
from tb_perfadvisor.ingest.files.containment import private_directory

NAME = "perfadvisor.log"
_MOST_BYTES = 1 << 20


class ErrorLog(logging.Handler):
    """Appends to a file in the cache directory, which is created when there is something to write.

    A log that cannot be written is left out: it must not cause another error.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self.path: Path | None = None
        """The file; None if nothing was written."""

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record."""
        with suppress(OSError, ValueError):
            path = private_directory() / NAME
            if path.exists() and path.stat().st_size > _MOST_BYTES:
                path.replace(path.with_suffix(".old"))
            with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{self.format(record)}\n")
            self.path = path


def write_error_log() -> ErrorLog:
    """Write the log of this process to the file from now on."""
    found = [handler for handler in logger().handlers if isinstance(handler, ErrorLog)]
    if found:
        found[0].path = None
        return found[0]
    log = ErrorLog()
    logger().addHandler(log)
    logger().propagate = False  # other handlers may print, and the records hold untrusted text
    return log
