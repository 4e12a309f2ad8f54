"""Threads of ours in a program: they end before Python does, and forks have none."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading

import pytest

from tb_perfadvisor.instrument.threads import SideThread

ENDS = """
    import os, sys, threading
    from tb_perfadvisor.instrument.threads import SideThread, at_exit

    has_begun = threading.Event()

    def run():
        has_begun.set()
        thread.ends.wait()
        print("ended")

    thread = SideThread(run)
    thread.start()
    has_begun.wait()
    at_exit(lambda: print("at exit"))
"""
FORKS = """
    if os.fork():
        os.wait()
        print("parent", threading.active_count())
    else:
        thread.join()
        print("child", flush=True)
"""


def output(program: str) -> list[str]:
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_a_thread_ends_before_python_does_and_after_what_records() -> None:
    assert output(ENDS) == ["at exit", "ended"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no forks")
def test_a_fork_of_the_program_neither_waits_for_threads_nor_ends_recordings() -> None:
    assert output(ENDS + FORKS) == ["child", "parent 1", "at exit", "ended"]


def test_a_thread_that_fails_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    thread = SideThread(lambda: 1 / 0)
    thread.start()
    thread.join()
    assert thread.is_started
    assert capfd.readouterr() == ("", "")


def test_garbage_of_the_program_may_be_collected_on_a_thread_as_it_ends() -> None:
    """Freeing a tensor gives Python's lock away; a thread that Python ends there aborts it."""
    pytest.importorskip("torch")
    freeing = ENDS.replace("thread.ends.wait()", "while not thread.ends.is_set(): free()")
    torch = "    import torch\n    free = lambda: [torch.zeros(9) for _ in range(100)].clear()\n"
    assert output(torch + freeing) == ["at exit", "ended"]


def test_a_thread_is_not_seen() -> None:
    seen = threading.enumerate()
    thread = SideThread(lambda: thread.ends.wait())
    thread.start()
    thread.start()  # it has begun
    assert threading.enumerate() == seen
    thread.ends.set()
    thread.join()
