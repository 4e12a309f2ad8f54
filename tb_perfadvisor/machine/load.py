"""How busy some cores are, and who keeps them busy, by what Linux tells in `/proc`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from tb_perfadvisor.machine.facts import Load

PROC = Path("/proc")
# The name in parentheses may hold anything: proc_pid_stat(5) counts fields from 1, and the third
# is the first after it.
_PARENT = 4 - 3
_TIMES = slice(14 - 3, 18 - 3)
"""In user mode and in the kernel, and the same of the children that it waited for."""


class Moment(Struct, frozen=True):
    """Time on some cores up to a moment, in the kernel's ticks."""

    busy: float
    whole: float
    of_program: float


def moment(processes: Collection[int], cores: Iterable[int], proc: Path = PROC) -> Moment | None:
    """What the cores and the processes of a program have done so far; None if no file tells."""
    names = {f"cpu{core}" for core in cores}
    busy = whole = 0.0
    try:
        for line in (proc / "stat").read_text("ascii").splitlines():
            name, *numbers = line.split()
            if name in names:
                # user, nice, system, idle, iowait, irq, softirq, steal: proc_stat(5)
                times = [float(number) for number in numbers[:8]]
                whole += sum(times)
                busy += sum(times) - times[3] - times[4]
    except (OSError, ValueError, IndexError):
        return None
    of_program = sum(_time_of(process, proc) for process in processes)
    return Moment(busy, whole, of_program) if whole else None


def load_between(before: Moment | None, after: Moment | None) -> Load | None:
    """The load from one moment to another; None if it is unknown."""
    if before is None or after is None or after.whole <= before.whole:
        return None
    whole, busy = after.whole - before.whole, after.busy - before.busy
    others = busy - (after.of_program - before.of_program)
    return Load(min(max(others / whole, 0.0), 1.0), min(max(1 - busy / whole, 0.0), 1.0))


def processes_of(mark: bytes, proc: Path = PROC) -> list[int]:
    """The processes whose environment contains a mark, also those that left their session."""
    found = []
    for process in _processes(proc):
        with suppress(OSError):
            if mark in (proc / str(process) / "environ").read_bytes():
                found.append(process)
    return found


def family_of(process: int, proc: Path = PROC) -> list[int]:
    """A process and all those that it started, directly or not."""
    children: dict[int, list[int]] = {}
    for each in _processes(proc):
        fields = _fields(each, proc)
        if len(fields) > _PARENT:
            children.setdefault(int(fields[_PARENT]), []).append(each)
    family = [process]
    for member in family:  # grows meanwhile
        family += children.pop(member, [])
    return family


def is_stopped(process: int, proc: Path = PROC) -> bool:
    """Whether a process was stopped by a signal."""
    return _fields(process, proc)[:1] == ["T"]


def memory_of(processes: Iterable[int], proc: Path = PROC) -> int | None:
    """The most memory that processes had at a time, each; None if it is unknown.

    What several of them share counts for each.
    """
    kibibytes = 0
    for process in processes:
        with suppress(OSError, ValueError):
            for line in (proc / str(process) / "status").read_text("utf-8", "replace").splitlines():
                if line.startswith("VmHWM:"):  # proc_pid_status(5)
                    kibibytes += int(line.split()[1])
    return kibibytes << 10 or None


def _processes(proc: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(proc) if name.isdigit()]  # noqa: PTH208 - names
    except OSError:
        return []


def _time_of(process: int, proc: Path) -> float:
    """Processor time of a process, and of those that it waited for."""
    try:
        return sum(map(float, _fields(process, proc)[_TIMES]))
    except ValueError:
        return 0.0


def _fields(process: int, proc: Path) -> list[str]:
    try:
        said = (proc / str(process) / "stat").read_text("utf-8", "replace")
    except OSError:
        return []
    return said.rpartition(")")[2].split()
