"""Where files are read: in this process, or in a pool."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from tb_perfadvisor import analyze, compare, load
from tb_perfadvisor.execution import IN_PROCESS, open_execution
from tb_perfadvisor.execution.execution import worthwhile_workers
from tb_perfadvisor.execution.process_pool import open_pool
from tb_perfadvisor.report.report import Report

TWO = Path(__file__).resolve().parents[2] / "demo_logs" / "pytorch_ddp_straggler"
MB = 1_000_000


def test_files_are_read_in_process_by_default() -> None:
    with open_execution() as execution:
        assert execution == IN_PROCESS


@pytest.mark.parametrize(
    ("sizes_bytes", "workers"),
    [
        ([], 1),
        ([2 * MB], 1),  # one file is one task
        ([3 * MB], 8),  # unless it is very large: then processes share it
        ([MB, 200 * MB, MB], 8),
        ([200 * MB] * 4, 2),  # of several files, each process reads its own
        ([MB] * 3, 1),  # each process reads two files at least
        ([8_000] * 100, 1),  # small files are read faster than a process starts
        ([8_000] * 200, 2),  # unless there are many
        ([MB] * 4, 2),
        ([MB] * 7, 3),
        ([MB] * 100, 8),  # each holds a trace
    ],
)
def test_processes_are_started_where_they_are_worth_it(
    sizes_bytes: list[int], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tb_perfadvisor.execution.execution.available_processors", lambda: 16)
    assert worthwhile_workers(sizes_bytes) == workers


@pytest.mark.parametrize(
    ("sizes_bytes", "workers", "is_shared"),
    [
        ([3 * MB], None, True),
        ([3 * MB] * 3, None, True),
        ([3 * MB] * 4, None, False),
        ([3 * MB], 2, True),
        ([2 * MB], 2, False),
        ([3 * MB] * 2, 2, False),  # a given number of processes counts for any format
    ],
)
def test_processes_share_a_few_very_large_files(
    sizes_bytes: list[int],
    workers: int | None,
    is_shared: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tb_perfadvisor.execution.execution.available_processors", lambda: 4)
    with open_execution(sizes_bytes, workers=workers) as execution:
        assert (execution.slicing is not None, execution.executor is None) == (is_shared, is_shared)
        if execution.slicing is not None:
            assert execution.slicing.processes == (workers or 4) - 1  # this one decodes, too


def test_no_more_processes_than_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tb_perfadvisor.execution.execution.available_processors", lambda: 2)
    assert worthwhile_workers([MB] * 100) == 2


def timeless(report: Report) -> list[object]:
    return [report.overview, report.findings, report.notes, report.workers]


def test_the_api_finds_the_same_in_a_pool() -> None:
    with open_execution(workers=2) as execution:
        assert timeless(analyze(TWO, execution=execution)) == timeless(analyze(TWO))
        compared = compare(TWO, TWO, execution=execution)
        (run,) = load(TWO, execution=execution)
    assert compared.targets[0].headline == compare(TWO, TWO).targets[0].headline
    assert [trace.source.rank for trace in run.traces] == [0, 1]


def hold_a_pool(pids: multiprocessing.Queue[int]) -> None:
    with open_pool(1) as executor:
        pids.put(executor.submit(os.getpid).result())
        time.sleep(60)


def test_processes_end_with_a_parent_that_is_killed() -> None:
    context = multiprocessing.get_context("spawn")
    pids: multiprocessing.Queue[int] = context.Queue()
    parent = context.Process(target=hold_a_pool, args=(pids,))
    parent.start()
    pid = pids.get(timeout=60)
    parent.kill()
    parent.join()
    deadline = time.monotonic() + 30
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")  # an orphan that nobody waits for stays as a zombie
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
