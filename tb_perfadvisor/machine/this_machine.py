"""What machine this process runs on, and how much of it the process may use."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from tb_perfadvisor.machine.facts import Load, Machine
from tb_perfadvisor.patterns import regex

_CPUINFO = Path("/proc/cpuinfo")
_CPUS = Path("/sys/devices/system/cpu")
_CGROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60
"""A cgroup without a limit states a number near 2 to the power of 63 (cgroup v1)."""
# Of the flags of x86 and the features of Arm in /proc/cpuinfo, those that change how fast numbers
# are computed.
_MATTERS = regex(
    r"avx\w*|amx\w*|fma|f16c|sse4_[12]|asimd\w*|sve\w*|sme2?|sme[ifb]\w+|bf16|i8mm|fphp|svebf16|svei8mm"
)
_SIZE = regex(r"(\d+)([KMG]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def open_cores() -> list[int]:
    """The logical processors that this process may run on; empty if it is unknown."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return []


def this_machine() -> Machine:
    """The machine, as far as this process may use it; takes a few milliseconds."""
    cores = open_cores()
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        processor=processor_name(),
        cores=len(cores) or os.cpu_count(),
        quota_cores=_quota_cores(),
        physical_cores=_physical_cores(cores),
        machine_cores=os.cpu_count(),
        cache_bytes=_cache_bytes(cores),
        memory_bytes=memory_bytes(),
        memory_limit_bytes=_memory_limit_bytes(),
        available_bytes=available_bytes(),
        instruction_sets=_instruction_sets(),
    )


def memory_bytes() -> int | None:
    """The machine's memory; None if it is unknown."""
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def processor_name() -> str:
    """The processor's name; empty if it is unknown."""
    for line in _text(_CPUINFO).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    with suppress(OSError, subprocess.SubprocessError):
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        return said.stdout.strip()
    return platform.processor()


def _instruction_sets() -> tuple[str, ...] | None:
    for line in _text(_CPUINFO).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return tuple(sorted(flag for flag in set(value.split()) if _MATTERS.fullmatch(flag)))
    return None


def _physical_cores(cores: Iterable[int]) -> int | None:
    """How many cores these logical processors are threads of."""
    siblings = {
        _text(_CPUS / f"cpu{core}/topology/core_cpus_list")
        or _text(_CPUS / f"cpu{core}/topology/thread_siblings_list")
        for core in cores
    }
    return len(siblings) if siblings and "" not in siblings else None


def _cache_bytes(cores: Iterable[int]) -> int | None:
    first = next(iter(cores), 0)
    sizes = []
    for index in range(8):
        size = _SIZE.fullmatch(_text(_CPUS / f"cpu{first}/cache/index{index}/size").strip())
        if size is not None:
            sizes.append(int(size[1]) * _UNITS[size[2]])
    return max(sizes, default=None)


def available_bytes() -> int | None:
    """What new allocations could use now; None if it is unknown."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _text(Path("/proc/meminfo")), re.MULTILINE)
    return int(found[1]) << 10 if found else None


def _quota_cores() -> float | None:
    """The least limit of processor time of this process's cgroup and of those around it."""
    limits = []
    for directory in _cgroups("cpu"):
        quota, _, period = _text(directory / "cpu.max").strip().partition(" ")
        limits.append((quota, period))
        limits.append(
            (
                _text(directory / "cpu.cfs_quota_us").strip(),
                _text(directory / "cpu.cfs_period_us").strip(),
            )
        )
    cores = [
        int(quota) / int(period)
        for quota, period in limits
        if quota.isdigit() and period.isdigit() and int(period) and int(quota)
    ]
    return min(cores, default=None)


def _memory_limit_bytes() -> int | None:
    limits = []
    for directory in _cgroups("memory"):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            text = _text(directory / name).strip()
            if text.isdigit() and int(text) < _NO_LIMIT:
                limits.append(int(text))
    return min(limits, default=None)


def _cgroups(controller: str) -> list[Path]:
    """The directories of this process's cgroup and of those around it, innermost first.

    In a container, the file names a path outside of what is mounted: then only the mount exists.
    """
    found = []
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mount = _CGROUPS / controllers if controllers else _CGROUPS
        inside = mount / path.strip("/")
        while inside != mount and mount in inside.parents:
            found.append(inside)
            inside = inside.parent
        found.append(mount)
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


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
