"""What machine this process runs on, and how much of it the process may use."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tb_perfadvisor.machine.facts import Machine

_CPUINFO = Path("/proc/cpuinfo")
_CPUS = Path("/sys/devices/system/cpu")
_CGROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60
"""A cgroup without a limit states a number near 2 to the power of 63 (cgroup v1)."""
# Of the flags of x86 and the features of Arm in /proc/cpuinfo, those that change how fast numbers
# are computed.
_MATTERS = re.compile(
    r"avx\w*|amx\w*|fma|f16c|sse4_[12]|asimd\w*|sve\w*|sme2?|sme[ifb]\w+|bf16|i8mm|fphp|svebf16|svei8mm"
)
_SIZE = re.compile(r"(\d+)([KMG]?)")
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
