"""Two versions of a small program that run in turns."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Machine
from tb_perfadvisor.machine.this_machine import processes_of, this_machine
from tb_perfadvisor.proof import runner, started
from tb_perfadvisor.proof.runner import Runner, why_not_in_turns
from tb_perfadvisor.proof.runs import Plan, Run
from tb_perfadvisor.proof.snapshot import take_snapshot, working_space
from tests.proof.stand_ins import BASE, Program

# Each step and each round of the worker adds a line with the time: of all programs to one file.
LOOP = """
import os, subprocess, sys, time
from tb_perfadvisor.instrument.continuous.profiler import ContinuousProfiler
from tb_perfadvisor.instrument.continuous.schedule import Plan
WORKER = '''
import os, sys, time
while True:
    began = time.monotonic_ns()
    time.sleep(0.001)
    with open(sys.argv[1], "a") as log:
        log.write(f"worker {{os.getcwd()}} {{began}} {{time.monotonic_ns()}}\\\\n")
'''
log = {log!r}
subprocess.Popen([sys.executable, "-c", WORKER, log], start_new_session=True)
while not os.path.exists(log) or f"worker {{os.getcwd()}} " not in open(log).read():
    time.sleep(0.01)
profiler = ContinuousProfiler("runs", None, Plan())
for number in range(100_000):
    began = time.monotonic_ns()
    time.sleep({sleep_s})
    {each}
    with open(log, "a") as file:
        file.write(f"main {{os.getcwd()}} {{began}} {{time.monotonic_ns()}}\\n")
    profiler.step()
"""
PLAN = Plan(begin=12, block_steps=10, blocks=6)
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


@pytest.fixture(autouse=True)
def _short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(started, "_PATIENCE_S", 0.5)
    yield
    assert [*folder.iterdir()] == []


@contextmanager
def runner_of(tmp_path: Path, each: str = "pass", sleep_s: str = "0.002") -> Iterator[Runner]:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    text = LOOP.format(log=str(tmp_path / "log"), each=each, sleep_s=sleep_s)
    (checkout / "train.py").write_text(text)
    with working_space() as space:
        yield Runner(take_snapshot(checkout, space), space, [sys.executable, "train.py"], checkout)
        assert processes_of(str(space).encode()) == []


def in_turns(runner: Runner, plan: Plan = PLAN, limit_s: float = 60.0) -> tuple[Run, Run]:
    version = runner.snapshot.directory
    return runner.measure_in_turns(version, version, "change", plan, limit_s, base_first=True)


def test_one_program_at_a_time_with_all_of_its_processes(tmp_path: Path) -> None:
    with runner_of(tmp_path) as runner:
        base, change = in_turns(runner)
    for run in (base, change):
        # On a busy machine, a program that is still warming up begins some blocks later.
        assert (run.problem, run.is_complete, (run.begin or 0) % 10) == ("", True, 2)
        assert len(run.counters) == PLAN.blocks + 1
        assert run.load is not None
        # A sleep of 2 ms, and what the machine adds.
        assert run.step_ns is not None
        assert run.step_ns > 2e6
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    both = sorted({line[1] for line in lines})
    assert len(both) == 2
    assert len(both[0]) == len(both[1])
    # In the steps that were measured, whatever one does lies between steps of the other.
    begin = max(base.begin or 0, change.begin or 0)
    steps = {
        program: [
            (int(start), int(end))
            for kind, place, start, end in lines
            if kind == "main" and place == program
        ][begin : begin + 60]
        for program in both
    }
    # One step in ten has a turn of the other program inside; it does not count.
    usual_ns = max(
        sorted(after[0] - one[0] for one, after in pairwise(each))[len(each) * 8 // 10]
        for each in steps.values()
    )
    assert max(base.step_ns or 0, change.step_ns or 0) < 3 * usual_ns
    warm_ups = sorted(
        [int(begin) for kind, place, begin, _ in lines if kind == "main" and place == program][:12]
        for program in both
    )
    assert warm_ups[0][-1] < warm_ups[1][0]  # one after the other
    first = max(each[0][0] for each in steps.values())
    last = min(each[-1][1] for each in steps.values())
    kinds = set()
    for kind, place, start, end in lines:
        other = both[0] if place == both[1] else both[1]
        if first < int(start) and int(end) < last:
            middle = (int(start) + int(end)) // 2
            inside = [one for one, stop in steps[other] if one < middle < stop]
            # What was under way when a program was stopped ends in its next turn.
            assert not inside or int(end) - int(start) > 10e6, kind
            kinds.add(kind)
    # On a busy machine, a worker may get no turn in between.
    assert "main" in kinds
    assert {line[0] for line in lines} == {"main", "worker"}


def test_a_program_that_ends_in_its_turn_ends_both(tmp_path: Path) -> None:
    with runner_of(tmp_path, "number == 30 and sys.exit('no more')") as runner:
        base, change = in_turns(runner)
    assert "no more" in base.problem or "no more" in change.problem
    assert not base.is_complete


def test_a_hang_in_a_turn_is_ended(tmp_path: Path) -> None:
    with runner_of(tmp_path, "number == 30 and time.sleep(600)") as runner:
        base, change = in_turns(runner, limit_s=4.0)
    assert "it was ended after 4 s" in base.problem + change.problem


def test_nothing_stays_when_the_command_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(
        "import sys, tempfile\n"
        "from pathlib import Path\n"
        "from tests.proof.test_turns import PLAN, in_turns, runner_of\n"
        f"tempfile.tempdir = {str(tmp_path / 't')!r}\n"
        f"with runner_of(Path({str(tmp_path)!r}), sleep_s='0.1') as runner:\n"
        "    in_turns(runner, PLAN)\n"
    )
    root = Path(__file__).parents[2]
    command = subprocess.Popen(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": str(root)}
    )
    mark = str(tmp_path / "t").encode()
    until_s = time.monotonic() + 60
    while not (tmp_path / "log").exists() and time.monotonic() < until_s:
        time.sleep(0.05)
    assert len(processes_of(mark)) >= 2
    command.kill()
    command.wait()
    while processes_of(mark) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert processes_of(mark) == []
    with working_space():  # deletes what the killed one left
        pass


def test_the_watcher_ends_what_is_marked_when_its_input_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    marked, other = (
        subprocess.Popen(sleep, env={**os.environ, "A_PLACE": str(tmp_path / name)})
        for name in ("marked", "other")
    )
    monkeypatch.setattr(sys, "argv", ["watcher", str(tmp_path / "marked")])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    runner.main()
    assert marked.wait(10) < 0
    assert other.poll() is None
    other.kill()
    other.wait()


def test_who_cannot_take_turns() -> None:
    machine: Machine = replace(
        this_machine(), system="Linux x86_64", available_bytes=10 << 30, memory_limit_bytes=None
    )
    run = Program().measure(BASE, "base", Plan(), 60)  # needs 1 GiB
    assert why_not_in_turns([run, run], machine) == ""
    large = replace(run, memory_bytes=7 << 30)
    assert "do not fit" in why_not_in_turns([run, large], machine)
    assert "do not fit" in why_not_in_turns(
        [run, run], replace(machine, memory_limit_bytes=2 << 30)
    )
    assert "accelerator" in why_not_in_turns([run, replace(run, accelerator="H100")], machine)
    assert "unknown" in why_not_in_turns([run, replace(run, memory_bytes=None)], machine)
    assert "system" in why_not_in_turns([run, run], replace(machine, system="Darwin arm64"))
