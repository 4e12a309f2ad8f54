"""The command from its start in a process of its own to that process's end."""

from __future__ import annotations

import subprocess
import sys

import pytest

START = """
import atexit, sys, threading, time
from tb_perfadvisor import __main__
sys.argv[1:] = ARGUMENTS
DO
__main__.main()
"""


def run(do: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START.replace("ARGUMENTS", repr(arguments)).replace("DO", do)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("arguments", "status"), [(("rules",), 0), (("analyze", "/nothing"), 2)])
def test_what_is_to_be_done_at_the_end_is_done(arguments: tuple[str, ...], status: int) -> None:
    done = run("atexit.register(print, 'the end', end='')", *arguments)
    assert done.returncode == status
    assert done.stdout.endswith("the end")
    assert done.stderr.startswith("error: ") == (status == 2)


def test_threads_are_waited_for() -> None:
    late = "threading.Thread(target=lambda: (time.sleep(1), print('the end'))).start()"
    assert run(late, "rules").stdout.endswith("the end\n")


def test_a_reader_that_has_gone_is_no_traceback() -> None:
    command = f"{sys.executable} -m tb_perfadvisor rules | head -c 10"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=60, check=False
    )
    assert (len(done.stdout), done.stderr) == (10, "")
