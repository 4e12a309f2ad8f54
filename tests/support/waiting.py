"""Waiting for another thread, process or server."""

import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def eventually(claim: Callable[[], bool], within_s: float = 120.0) -> None:
    """Wait until a condition holds that another thread or process causes."""
    deadline = time.monotonic() + within_s
    while not claim():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def address_in(log: Path, server: subprocess.Popen[Any], within_s: float = 180) -> str:
    """Wait for the loopback address that a starting server writes to its log."""
    deadline = time.monotonic() + within_s
    while (found := re.search(r"http://127\.0\.0\.1:\d+/", log.read_text())) is None:
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return found.group()
