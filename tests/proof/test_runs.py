"""Runs of small programs: how they are measured, ended and cleaned up."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.machine.this_machine import processes_of
from tb_perfadvisor.proof import runner as runner_module
from tb_perfadvisor.proof import started
from tb_perfadvisor.proof.runner import Runner
from tb_perfadvisor.proof.runs import BLOCKS, Plan, Run
from tb_perfadvisor.proof.session import apply_patch
from tb_perfadvisor.proof.snapshot import take_snapshot, working_space

# Without a framework, a program is quick to start. It marks its steps itself, as those of JAX do.
LOOP = """
import sys, time
from tb_perfadvisor.instrument.continuous.profiler import ContinuousProfiler
from tb_perfadvisor.instrument.continuous.schedule import Plan
profiler = ContinuousProfiler("runs", None, Plan())
for number in range(100_000):
    time.sleep(0.002)
    {each}
    print(f"step {{number}} loss: {{1 / (number + 1):.4f}}")
    profiler.step()
"""
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs Linux or macOS")


@pytest.fixture(autouse=True)
def _short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(runner_module, "WINDOW_S", 0.1)
    monkeypatch.setattr(started, "_PATIENCE_S", 0.5)
    yield
    assert [*folder.iterdir()] == []


def measured(tmp_path: Path, each: str = "pass", limit_s: float = 60.0, **plan: int) -> Run:
    """Measure the loop with something more in each step."""
    return of_program(tmp_path, LOOP.format(each=each), limit_s, **plan)


def of_program(tmp_path: Path, program: str, limit_s: float = 60.0, **plan: int) -> Run:
    checkout = tmp_path / "checkout"
    checkout.mkdir(exist_ok=True)
    (checkout / "train.py").write_text(program)
    before = {each.name: each.read_bytes() for each in checkout.iterdir()}
    with working_space() as space:
        snapshot = take_snapshot(checkout, space)
        runner = Runner(snapshot, space, [sys.executable, "train.py"], checkout)
        found = runner.measure(snapshot.directory, "base", Plan(**plan), limit_s)
        assert processes_of(str(space).encode()) == []
    assert {each.name: each.read_bytes() for each in checkout.iterdir()} == before
    return found


def test_measures_blocks_of_steps(tmp_path: Path) -> None:
    run = measured(tmp_path)
    assert (run.problem, run.is_complete) == ("", True)
    assert len(run.counters) == BLOCKS + 1
    assert run.step_ns is not None
    assert run.step_ns > 2e6  # a sleep of 2 ms
    assert run.series["printed loss"][:3] == (1.0, 0.5, 0.3333)
    assert run.start_up_s is not None
    assert run.start_up_s < run.whole_s


def test_a_loss_that_was_not_written_whole_does_not_count() -> None:
    assert started.printed_losses(b"step 1 loss: 2.63\nstep 2 loss: 2.5") == (2.63,)
    assert started.printed_losses(b"step 1 loss: 2.63\nstep 2 loss: 2.5\n") == (2.63, 2.5)
    assert started.printed_losses(b"") == ()


def test_measures_the_steps_that_it_is_told(tmp_path: Path) -> None:
    run = measured(tmp_path, begin=30, block_steps=3)
    assert run.block_steps == 3
    assert run.begin is not None
    # Later by whole blocks where the first steps vary, as on a busy machine.
    assert run.begin in range(30, run.steps, 3)
    assert run.steps >= run.begin + 3 * BLOCKS


def test_a_hang_is_ended(tmp_path: Path) -> None:
    run = measured(tmp_path, "number == 12 and time.sleep(600)", limit_s=1.0)
    assert run.problem.startswith("it was ended after 1 s")


def test_a_crash_is_told_by_its_last_line(tmp_path: Path) -> None:
    run = measured(tmp_path, "number == 12 and sys.exit('no space left on device')")
    assert run.problem == "it ended with status 1: no space left on device"


def test_programs_without_steps_say_so(tmp_path: Path) -> None:
    assert "none of its steps was seen" in of_program(tmp_path, "print(1)").problem


def test_a_program_that_ignores_to_be_ended(tmp_path: Path) -> None:
    stubborn = (
        "import signal, subprocess\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        # A process of a session of its own, as launchers start them.
        "subprocess.Popen([__import__('sys').executable, '-c', 'import time; time.sleep(600)'],\n"
        "                 start_new_session=True)\n"
    )
    assert of_program(tmp_path, stubborn + LOOP.format(each="pass")).is_complete


def test_writes_to_the_checkout_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "checkout" / "out.txt"
    run = measured(tmp_path, f"number == 12 and open({str(target)!r}, 'w')")
    assert "keeps as it is" in run.problem
    assert not target.exists()


def test_what_a_program_writes_is_gone_in_the_next_run(tmp_path: Path) -> None:
    each = "open('again.txt', 'x') if number == 3 else None"
    assert measured(tmp_path, each).problem == ""
    assert measured(tmp_path, each).problem == ""


def test_a_missing_program_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    with working_space() as space:
        snapshot = take_snapshot(tmp_path / "checkout", space)
        runner = Runner(snapshot, space, ["./missing"], tmp_path)
        with pytest.raises(PerfAdvisorError, match="cannot be started"):
            runner.measure(snapshot.directory, "base", Plan(), 10)


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **keywords: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "checkout").mkdir()
    with working_space() as space:
        snapshot = take_snapshot(tmp_path / "checkout", space)
        runner = Runner(snapshot, space, [sys.executable, "train.py"], tmp_path)
        monkeypatch.setattr("shutil.copytree", full)
        with pytest.raises(PerfAdvisorError, match="No space left on device"):
            runner.measure(snapshot.directory, "base", Plan(), 10)


def test_patches_stay_in_the_copy(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "a.py").write_text("x = 1\n")
    (tmp_path / "out.py").write_text("x = 1\n")
    (tmp_path / "copy" / "link.py").symlink_to(tmp_path / "out.py")
    hunk = "@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    apply_patch(f"--- a/a.py\n+++ b/a.py\n{hunk}", tmp_path / "copy")
    assert (tmp_path / "copy" / "a.py").read_text() == "x = 2\n"
    for name in ("../out.py", "link.py"):
        with pytest.raises(PerfAdvisorError, match="does not apply"):
            apply_patch(f"--- a/{name}\n+++ b/{name}\n{hunk}", tmp_path / "copy")
    assert (tmp_path / "out.py").read_text() == "x = 1\n"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's allocator")
def test_freed_memory_is_kept_between_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = (
        "import resource; blocks = [bytearray(1 << 20) for _ in range(20)]; del blocks; "
        "faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt; "
        "number == 150 and sys.exit(f'{faults}')"
    )
    kept = _number_said(measured(tmp_path, each, begin=100, block_steps=1, blocks=400))
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")  # the default, by the user's choice
    returned = _number_said(measured(tmp_path, each, begin=100, block_steps=1, blocks=400))
    # Up to 256 pages for each of 20 blocks in 100 steps; how much is given back is left to chance.
    assert returned > 2 * kept


def _number_said(run: Run) -> int:
    return int(run.problem.rpartition(" ")[2])
