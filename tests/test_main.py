"""The command in a process of its own."""

from __future__ import annotations

import subprocess
import sys


def test_a_closed_pipe_is_no_traceback() -> None:
    command = f"{sys.executable} -m tb_perfadvisor rules | head -c 10"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=60, check=False
    )
    assert (len(done.stdout), done.stderr) == (10, "")
