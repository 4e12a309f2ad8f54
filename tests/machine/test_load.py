"""How busy the cores are, by drawn files of `/proc`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tb_perfadvisor.machine.facts import Load
from tb_perfadvisor.machine.this_machine import family_of, load_between, moment, processes_of


def process(proc: Path, number: int, parent: int, own: int, name: str = "a) b") -> None:
    (proc / str(number)).mkdir(exist_ok=True)
    fields = " ".join(["S", str(parent), "17", "17", *["0"] * 7, str(own), "0", "0", "0"])
    (proc / str(number) / "stat").write_text(f"{number} ({name}) {fields}")


def test_load_by_others(tmp_path: Path) -> None:
    def state(busy: int, idle: int, own: int) -> None:
        (tmp_path / "stat").write_text(
            f"cpu 0 0 0 0\ncpu0 {busy} 0 0 {idle} 0 0 0 0\ncpu1 9 0 0 9\n"
        )
        process(tmp_path, 17, 1, own)
        (tmp_path / "17" / "environ").write_bytes(b"A=1\0PERFADVISOR_RUN=mark\0")

    state(100, 100, 10)
    marked = processes_of(b"mark", tmp_path)
    assert marked == [17]
    before = moment(marked, [0], tmp_path)
    # 100 ticks later, 60 were busy, 40 of them for the program: others used 20 %.
    state(160, 140, 50)
    after = moment(marked, [0], tmp_path)
    assert load_between(before, after) == Load(pytest.approx(0.2), pytest.approx(0.4))
    assert load_between(before, before) is None
    assert moment(marked, [0], tmp_path / "missing") is None


def test_a_family_is_all_that_a_process_started(tmp_path: Path) -> None:
    for number, parent in ((10, 1), (11, 10), (12, 11), (13, 10), (20, 1), (21, 20)):
        process(tmp_path, number, parent, 0, name=f") {number} (")
    (tmp_path / "14").mkdir()  # a process that has ended meanwhile
    assert family_of(10, tmp_path) == [10, 11, 13, 12]
    assert family_of(10, tmp_path / "missing") == [10]


def test_this_process_is_found_by_its_environment() -> None:
    if sys.platform != "linux":
        pytest.skip("needs /proc")
    assert os.getpid() in processes_of(b"PATH=")
    assert os.getpid() in family_of(os.getppid())
