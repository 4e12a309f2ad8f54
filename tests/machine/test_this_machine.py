"""What is read of machines, by drawn files of the kernel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tb_perfadvisor.machine import this_machine as reading
from tb_perfadvisor.machine.facts import Machine
from tb_perfadvisor.machine.this_machine import this_machine


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root in which the kernel's files are drawn."""
    text = reading._text

    def text_of(path: Path) -> str:
        inside = tmp_path / str(path).removeprefix(str(tmp_path)).lstrip("/")
        return text(inside)

    monkeypatch.setattr(reading, "_text", text_of)
    monkeypatch.setattr(reading, "open_cores", lambda: [0, 1, 2, 3])
    return tmp_path


def put(root: Path, **texts: str) -> None:
    for name, content in texts.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_instruction_sets_of_x86_and_arm(files: Path) -> None:
    put(files, proc__cpuinfo="model name\t: X\nflags\t\t: fpu smep avx2 amx_bf16 avx512_bf16 ht\n")
    assert this_machine().instruction_sets == ("amx_bf16", "avx2", "avx512_bf16")
    assert this_machine().has("amx_bf16") is True
    assert this_machine().has("avx512f") is False
    put(files, proc__cpuinfo="Features\t: fp asimd bf16 sve i8mm sme crc32\n")
    assert this_machine().instruction_sets == ("asimd", "bf16", "i8mm", "sme", "sve")
    put(files, proc__cpuinfo="hello")
    assert this_machine().instruction_sets is None
    assert this_machine().has("avx2") is None


def test_threads_of_one_core_are_told(files: Path) -> None:
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        path = files / f"sys/devices/system/cpu/cpu{cpu}/topology"
        path.mkdir(parents=True)
        (path / "core_cpus_list").write_text(siblings)
    assert (this_machine().cores, this_machine().physical_cores) == (4, 2)
    (files / "sys/devices/system/cpu/cpu3/topology/core_cpus_list").unlink()
    assert this_machine().physical_cores is None


def test_limits_of_cgroup_2_count_from_any_level(files: Path) -> None:
    cgroup = files / "sys/fs/cgroup/kubepods/pod7"
    cgroup.mkdir(parents=True)
    put(files, proc__self__cgroup="0::/kubepods/pod7\n")
    (cgroup / "cpu.max").write_text("max 100000\n")
    (cgroup / "memory.max").write_text("max\n")
    assert this_machine().quota_cores is None
    assert this_machine().memory_limit_bytes is None
    (cgroup.parent / "cpu.max").write_text("250000 100000\n")
    (cgroup.parent / "memory.max").write_text("8589934592\n")
    found = this_machine()
    assert (found.quota_cores, found.usable_cores) == (2.5, 2.5)
    assert found.memory_limit_bytes == 8 << 30


def test_limits_of_cgroup_1(files: Path) -> None:
    put(files, proc__self__cgroup="4:memory:/job\n3:cpu,cpuacct:/job\n")
    for controller, texts in (
        ("cpu,cpuacct", {"cpu.cfs_quota_us": "600000", "cpu.cfs_period_us": "100000"}),
        ("memory", {"memory.limit_in_bytes": "9223372036854771712"}),
    ):
        folder = files / "sys/fs/cgroup" / controller / "job"
        folder.mkdir(parents=True)
        for name, text in texts.items():
            (folder / name).write_text(text)
    found = this_machine()
    # Six cores of quota, and four that the process may run on.
    assert (found.quota_cores, found.usable_cores) == (6.0, 4.0)
    assert found.memory_limit_bytes is None  # the kernel's way to state no limit


def test_unknown_is_unknown() -> None:
    assert Machine().usable_cores is None
    assert Machine().usable_memory_bytes is None
    assert Machine().has("avx2") is None


def test_this_machine_is_known() -> None:
    found = this_machine()
    assert found.cores == len(reading.open_cores()) or found.cores == os.cpu_count()
    assert found.memory_bytes is None or found.memory_bytes > 1 << 28
