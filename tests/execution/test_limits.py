"""Analyses end when their time is over, and a process gets no more memory than it may use."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tb_perfadvisor.execution.limits import (
    Limits,
    TimeLimitError,
    memory_limit,
    time_limit,
    within_machine,
)
from tb_perfadvisor.execution.process_pool import open_pool
from tests.support.command import run

DEMO = Path(__file__).resolve().parents[2] / "demo_logs" / "pytorch_input_slow"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing interrupts there")


def work(seconds: float) -> str:
    """Go on for a time, whatever is raised meanwhile."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(Exception):
            sum(range(1000))
    return "done"


def test_what_catches_every_exception_ends_too() -> None:
    with pytest.raises(TimeLimitError, match=r"longer than 0\.2 s"), time_limit(0.2):
        work(60)
    with time_limit(60):
        assert work(0.01) == "done"


def test_an_alarm_of_the_caller_rings_afterwards() -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    try:
        signal.alarm(1)
        with time_limit(60):
            pass
        time.sleep(1.5)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert rung == [signal.SIGALRM]


def test_a_task_of_a_pool_ends_and_the_next_one_starts() -> None:
    with open_pool(1, Limits(time_s=5, memory_bytes=0)) as executor:
        late, soon = executor.submit(work, 600), executor.submit(work, 0.01)
        with pytest.raises(TimeLimitError, match="longer than 5 s"):
            late.result()
        assert soon.result() == "done"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
def test_memory_is_limited_within_the_context() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    with memory_limit(64 << 30):
        with pytest.raises(MemoryError):
            bytearray(100 << 30)
        assert resource.getrlimit(resource.RLIMIT_AS)[0] == 64 << 30
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_processes_together_leave_the_machine_some_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "tb_perfadvisor.execution.limits._machine_memory_bytes"
    monkeypatch.setattr(name, lambda: 20 << 30)
    assert within_machine(8 << 30) == 8 << 30
    assert within_machine(8 << 30, 4) == 4 << 30  # 80 % of 20 GiB for four
    monkeypatch.setattr(name, lambda: None)
    assert within_machine(8 << 30, 4) == 8 << 30


def test_the_command_ends_with_a_sentence() -> None:
    done = run("analyze", DEMO, "--no-cache", "--time-limit", "0.001", status=2)
    assert "took longer than 0.001 s and was stopped." in done.stderr
    assert "--time-limit SECONDS" in done.stderr
