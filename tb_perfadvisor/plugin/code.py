"""The user's code in the tab. Its directory is chosen when TensorBoard starts, not by requests."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time

import msgspec

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.plugin import log

_FRESH_S = 30
"""How long files that were read are used: users edit their code while they read a report."""


class Code:
    """The directory of the user's code."""

    def __init__(self, directory: str, link: str) -> None:
        """Open the directory; `link` is the pattern of links, empty for none."""
        from tb_perfadvisor.sources import Repository

        self.directory, self._link = directory, link or None
        self._lock = threading.Lock()
        self._repository: Repository | None = None
        self._read_at_s = 0.0

    def attach(self, report: bytes) -> bytes:
        """A report in JSON with the lines of code that its findings are about.

        A wrong directory or pattern is logged, and the report is shown without code.
        """
        from tb_perfadvisor.report.report import Report
        from tb_perfadvisor.sources import Repository, with_sources

        try:
            with self._lock:
                if self._repository is None or time.monotonic() - self._read_at_s > _FRESH_S:
                    self._repository = Repository(self.directory)
                    self._read_at_s = time.monotonic()
                found = with_sources(
                    msgspec.json.decode(report, type=Report), self._repository, self._link
                )
        except PerfAdvisorError as error:
            log.warn(f"no code is shown: {error}")
            return report
        return msgspec.json.encode(found)

    def digest(self) -> str:
        """Tells the state of the code: another one once a file was changed."""
        from tb_perfadvisor.sources import Repository

        repository = Repository(self.directory)
        digest = hashlib.sha256()
        for path in repository.files:
            with contextlib.suppress(OSError):  # deleted meanwhile
                stat = (repository.root / path).stat()
                digest.update(
                    f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode(errors="replace")
                )
        return digest.hexdigest()
