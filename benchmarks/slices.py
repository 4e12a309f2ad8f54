"""Measures how the analysis of one large Kineto trace scales with processes, by processor time.

    python benchmarks/slices.py big.pt.trace.json.gz --workers 1 4 8

With a core for each process and thread, an analysis takes at best the sum of three parts, whatever
else the machine does while they are measured:

- While slices are decoded, this process reads, inflates and joins. Neither waits for the other as
  long as it has work, so this part takes as long as the busier one: this process from the first
  slice until the last one is decoded, or the busiest of the others. The others do nothing else.
- Rules run in threads, which share what they compute, and take as long as the busiest thread.
  Threads that wait for one another or for Python's lock take longer; processor time does not show
  that.
- The rest is what this process does alone.

Prints Markdown. Needs Linux, which tells the time of each process.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from threading import get_ident
from time import process_time, thread_time
from typing import Any, ClassVar
from unittest.mock import patch

from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.execution import open_execution


def main() -> None:
    """Measure what the command line asks for and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", type=Path, help="a Kineto trace of 80 MB or more")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 8])
    given = parser.parse_args()
    print("| processes | alone | beside slices | busiest other | rules | sum | all together |")
    print("|---|---|---|---|---|---|---|")
    for workers in given.workers:
        alone_s, beside_s, others_s, rules_s = _processor_times(given.trace, workers)
        busiest_s, longest_s = max(others_s, default=0.0), max(rules_s, default=0.0)
        sum_s = alone_s + max(beside_s, busiest_s) + longest_s
        parts = (alone_s, beside_s, busiest_s, longest_s, sum_s)
        all_s = alone_s + beside_s + sum(others_s) + sum(rules_s)
        print(f"| {workers} | {' | '.join(f'{part:.2f} s' for part in (*parts, all_s))} |")


class _Watched(Executor):
    """Hands slices on, and notes how much this process has worked when they begin and end."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.moments_s: list[float] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.moments_s.append(process_time())
        future: Future[Any] = self._executor.submit(fn, *args, **kwargs)
        future.add_done_callback(lambda _: self.moments_s.append(process_time()))
        return future


class _TimedThreads(ThreadPoolExecutor):
    """Threads that run rules, and how long each of them has worked."""

    worked_s: ClassVar[defaultdict[int, float]] = defaultdict(float)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        def timed() -> Any:
            began_s = thread_time()
            try:
                return fn(*args, **kwargs)
            finally:
                self.worked_s[get_ident()] += thread_time() - began_s

        return super().submit(timed)


def _processor_times(trace: Path, workers: int) -> tuple[float, float, list[float], list[float]]:
    """What this process did alone and beside slices, each other process, and each rules' thread."""
    _TimedThreads.worked_s.clear()
    began_s = process_time()
    with open_execution([trace.stat().st_size], workers=workers) as execution:
        slicing, watched = execution.slicing, None
        if slicing is not None:
            watched = _Watched(slicing.executor)
            execution = replace(execution, slicing=replace(slicing, executor=watched))
        with patch("concurrent.futures.ThreadPoolExecutor", _TimedThreads):
            analyze(trace, execution=execution)
        here_s = process_time() - began_s
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        others_s = [_processor_s(process) for process in children]
    rules_s = list(_TimedThreads.worked_s.values())
    moments_s = watched.moments_s if watched is not None else []
    beside_s = max(moments_s, default=0.0) - min(moments_s, default=0.0)
    return here_s - beside_s - sum(rules_s), beside_s, others_s, rules_s


def _processor_s(process: str) -> float:
    _, _, after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")
    user, system = after_name.split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
