"""Analyzes recordings in a process of low priority, and logs what they say."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

_PROGRAM: Final = (
    "import os, sys\n"
    "getattr(os, 'nice', lambda value: None)(19)\n"
    "from tb_perfadvisor.cli import main\n"
    "main()\n"
)
_TIME_LIMIT_S: Final = 300


class Advisor:
    """One analysis at a time; a recording that comes meanwhile is not analyzed."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._output: Any = None
        self.directory: Path | None = None
        """What is being analyzed, and so must not be deleted."""
        self._step = 0

    def analyze(self, directory: Path, step: int) -> None:
        """Begin to analyze a recording.

        Args:
            directory: Where it lies.
            step: Its first step, to name it.
        """
        if self._process is not None:
            return
        self._step = step
        self.directory = directory
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - open until the process has ended
        # The analysis must not take a device of the program, or record itself.
        hidden = {"CUDA_VISIBLE_DEVICES": "", "PERFADVISOR_PROFILING": "off"}
        arguments = ["analyze", str(directory), "--format", "json"]
        arguments += ["--workers", "1", "--time-limit", str(_TIME_LIMIT_S)]
        lowered = getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0)  # on Windows
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **hidden},
            creationflags=lowered,
        )

    def poll(self) -> None:
        """Log the result if there is one. Costs nothing while nothing is analyzed."""
        if self._process is not None and self._process.poll() is not None:
            self._finish()

    def close(self) -> None:
        """Wait for what is being analyzed, and log it."""
        if self._process is None:
            return
        try:
            self._process.wait(_TIME_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._finish()

    def _finish(self) -> None:
        assert self._process is not None
        status, self._process = self._process.returncode, None
        output, self._output = self._output, None
        self.directory = None
        with output:
            output.seek(0)
            text = output.read()
        if status != 0:
            self._log.warning("Perf Advisor could not analyze step %d's recording.", self._step)
            return
        for report in json.loads(text)["reports"]:
            first = report["first"]
            change = f" First: {report['findings'][first['index']]['title']}." if first else ""
            self._log.info(
                "Perf Advisor, from step %d: %s.%s", self._step, report["headline"], change
            )
