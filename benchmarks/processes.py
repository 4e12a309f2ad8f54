"""Runs programs alternately in fresh processes, and measures their time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter

ROOT = Path(__file__).parents[1]
_TIME_LIMIT_S = 1800.0
_LOOK_EVERY_S = 0.02

Command = Sequence[str]


@dataclass(frozen=True, slots=True)
class Program:
    """A program to measure."""

    name: str
    commands: Callable[[Path], Sequence[Command]]
    """Given a directory made for this run alone, the commands to time, run side by side."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run."""

    wall_s: float
    cpu_s: float
    work_s: float | None
    """What the program itself measured, without its imports; None when it says nothing."""


@dataclass(slots=True)
class Result:
    """All runs of one program."""

    samples: list[Sample] = field(default_factory=list)
    peak_bytes: int = 0
    """Resident memory of the command's processes together, at its highest, in a run of its own:
    to look at it takes time of a program that uses every core."""
    error: str = ""
    """Why it has none."""

    def median(self, figure: Callable[[Sample], float]) -> float:
        """The median of a value over the runs."""
        return median(map(figure, self.samples))


class FailedError(Exception):
    """A command that failed; the message is the end of its output."""


def wall_s(sample: Sample) -> float:
    """Wall time from start to end of the processes."""
    return sample.wall_s


def cpu_s(sample: Sample) -> float:
    """Processor time of all its processes."""
    return sample.cpu_s


def work_s(sample: Sample) -> float:
    """Wall time without start-up and imports, if the program reports it."""
    return sample.wall_s if sample.work_s is None else sample.work_s


def environment(folder: Path) -> dict[str, str]:
    """Environment variables of a run: this checkout, and an empty cache."""
    return os.environ | {"PYTHONPATH": str(ROOT), "PERFADVISOR_CACHE_DIR": str(folder / "cache")}


def in_turns(programs: Sequence[Program], runs: int, scratch: Path) -> dict[str, Result]:
    """Run the programs A B A B …, so that other load of the machine affects all equally.

    Args:
        programs: The programs; a program that fails is not run again.
        runs: The number of timed runs of each; memory is measured in an extra run before.
        scratch: The parent of a directory for each run.
    """
    results = {program.name: Result() for program in programs}
    for number in range(runs + 1):
        for program in programs:
            result = results[program.name]
            if result.error:
                continue
            print(f"  {program.name} ({number} of {runs})", file=sys.stderr)
            try:
                if number == 0:
                    result.peak_bytes = _peak_bytes(program, scratch)
                else:
                    result.samples.append(_timed(program, scratch))
            except FailedError as error:
                result.error = str(error)
    return results


def pairwise(
    results: Mapping[str, Result],
    slow: str,
    fast: str,
    ratio: Callable[[Sample, Sample], float],
) -> float | None:
    """The median of a ratio of two programs' runs, pair by pair; None if one has failed."""
    pairs = list(zip(results[slow].samples, results[fast].samples, strict=False))
    if not pairs or results[slow].error or results[fast].error:
        return None
    return median(ratio(first, second) for first, second in pairs)


def _timed(program: Program, scratch: Path) -> Sample:
    with tempfile.TemporaryDirectory(dir=scratch) as made:
        folder = Path(made)
        commands = program.commands(folder)
        began = perf_counter()
        usages = [_wait(process) for process in _begun(commands, folder)]
        elapsed_s = perf_counter() - began
        _check(usages, folder)
        return Sample(
            wall_s=elapsed_s,
            cpu_s=sum(usage.cpu_s for usage in usages),
            work_s=_said(folder / "0.out") if len(commands) == 1 else None,
        )


def _peak_bytes(program: Program, scratch: Path) -> int:
    with tempfile.TemporaryDirectory(dir=scratch) as made:
        folder = Path(made)
        processes = _begun(program.commands(folder), folder)
        with _Watch([process.pid for process in processes]) as watch:
            usages = [_wait(process) for process in processes]
        _check(usages, folder)
        # The largest of a process and the children it waited for. A process begins with its
        # parent's peak, so this program must stay small: it generates nothing itself.
        return max(watch.peak_bytes, *(usage.peak_bytes for usage in usages))


@dataclass(frozen=True, slots=True)
class _Usage:
    """Resource usage of a process that has ended."""

    status: int
    cpu_s: float
    peak_bytes: int


def _begun(commands: Sequence[Command], folder: Path) -> list[subprocess.Popen[bytes]]:
    """Start the commands concurrently."""
    surroundings = environment(folder)
    processes = []
    for number, command in enumerate(commands):
        with (
            (folder / f"{number}.out").open("wb") as out,
            (folder / f"{number}.err").open("wb") as err,
        ):
            processes.append(
                subprocess.Popen(
                    command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=surroundings
                )
            )
    return processes


def _check(usages: Sequence[_Usage], folder: Path) -> None:
    for number, usage in enumerate(usages):
        if usage.status:
            raise FailedError(_last_line(folder / f"{number}.err"))


class _Watch:
    """Samples the memory of processes and all their descendants."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.peak_bytes = 0
        """At its highest; 0 where the system does not tell."""
        self._pids = pids
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(_LOOK_EVERY_S):
            private, shared = 0, 0
            for pid in self._pids:
                for process in _family(pid):
                    private_bytes, shared_bytes = _memory_bytes(process)
                    private += private_bytes
                    # Libraries and shared memory exist only once.
                    shared = max(shared, shared_bytes)
            self.peak_bytes = max(self.peak_bytes, private + shared)


def _family(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has ended, or there is no /proc
        return
    for child in children:
        yield from _family(int(child))


def _memory_bytes(pid: int) -> tuple[int, int]:
    """The private and shared memory of a process."""
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    except (OSError, ValueError):
        return 0, 0
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return (resident - shared) * page_bytes, shared * page_bytes


def _wait(process: subprocess.Popen[bytes]) -> _Usage:
    limit = threading.Timer(_TIME_LIMIT_S, process.kill)
    limit.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    finally:
        limit.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu_s, peak_kilobytes = usage.ru_utime + usage.ru_stime, usage.ru_maxrss
    return _Usage(process.returncode, cpu_s, peak_kilobytes * 1024)


def _said(out: Path) -> float | None:
    """The `work_s` of a program's last line."""
    if out.stat().st_size > 10_000:
        return None  # a report
    try:
        result = json.loads(out.read_text().splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return result.get("work_s") if isinstance(result, dict) else None


def _last_line(err: Path) -> str:
    lines = err.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip()[:200] if lines else "no message"
