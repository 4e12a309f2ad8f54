"""A queue whose jobs run in this process: a process takes half a second to start."""

from __future__ import annotations

import io
import threading
from contextlib import redirect_stderr
from importlib import import_module
from pathlib import Path

from tb_perfadvisor.plugin.jobs import JobQueue, _Running


class JobsHere(JobQueue):
    """Runs jobs as processes do, without their limits."""

    # One standard error for all queues.
    _turn = threading.Lock()

    def warm_up(self) -> None:
        """There is no process to start."""

    def _execute(self, running: _Running, directory: Path) -> int:
        said = io.StringIO()
        with self._turn, redirect_stderr(said):
            job = import_module(running.job.module)
            status: int = job.main([*running.job.arguments, "--output", str(directory)])
        for line in said.getvalue().splitlines():
            self._read(running, line.encode())
        return status
