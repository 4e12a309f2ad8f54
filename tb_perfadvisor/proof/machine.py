"""What else the machine does, where the runs may run, and what machine it is."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

_PROC = Path("/proc")


def pinned_cores() -> list[int]:
    """The cores that all runs use: those that this process may use; empty if it is unknown."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return []


class Moment(Struct, frozen=True):
    """Time on some cores up to a moment, in the kernel's ticks."""

    busy: float
    whole: float
    of_program: float


def moment(mark: bytes, cores: Iterable[int], proc: Path = _PROC) -> Moment | None:
    """What the cores and the processes of a program have done so far; None if no file tells.

    Args:
        mark: What the environment of the program's processes contains.
        cores: The cores.
        proc: Where the kernel tells.
    """
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
    return Moment(busy, whole, _time_of(mark, proc)) if whole else None


class Load(Struct, frozen=True):
    """How the cores were used during a run, as shares (0-1) of their time."""

    others: float
    """By other programs."""
    idle: float


def load_between(before: Moment | None, after: Moment | None) -> Load | None:
    """The load from one moment to another; None if it is unknown."""
    if before is None or after is None or after.whole <= before.whole:
        return None
    whole, busy = after.whole - before.whole, after.busy - before.busy
    others = busy - (after.of_program - before.of_program)
    return Load(min(max(others / whole, 0.0), 1.0), max(1 - busy / whole, 0.0))


def processes_of(mark: bytes, proc: Path = _PROC) -> list[int]:
    """The processes whose environment contains a mark, also those that left their session."""
    found = []
    for folder in proc.iterdir() if proc.is_dir() else ():
        if folder.name.isdigit():
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
    return found


def _time_of(mark: bytes, proc: Path) -> float:
    """Processor time of the processes with a mark, and of those that they waited for."""
    ticks = 0.0
    for process in processes_of(mark, proc):
        with suppress(OSError, ValueError, IndexError):
            # The name in parentheses may hold anything: proc_pid_stat(5).
            said = (proc / str(process) / "stat").read_text("utf-8", "replace")
            ticks += sum(float(field) for field in said.rpartition(")")[2].split()[11:15])
    return ticks


class Machine(Struct, frozen=True):
    """What the ledger says of a machine: enough to tell whether two are alike, no name."""

    system: str
    processor: str
    cores: int
    memory_gib: float | None
    accelerator: str
    """As the program's framework names it; empty for none."""


def this_machine(accelerator: str) -> Machine:
    """The machine that this process runs on."""
    memory_gib = None
    with suppress(AttributeError, ValueError, OSError):
        memory_gib = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1)
    return Machine(
        f"{platform.system()} {platform.machine()}",
        _processor(),
        len(pinned_cores()) or os.cpu_count() or 1,
        memory_gib,
        accelerator,
    )


def _processor() -> str:
    with suppress(OSError):
        for line in (_PROC / "cpuinfo").read_text("utf-8", "replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    with suppress(OSError, subprocess.SubprocessError):
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        return said.stdout.strip()
    return platform.processor()
