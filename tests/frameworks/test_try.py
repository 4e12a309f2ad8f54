"""`perfadvisor try` with real programs."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor.machine.this_machine import processes_of
from tb_perfadvisor.proof.runner import Runner
from tb_perfadvisor.proof.runs import Plan
from tb_perfadvisor.proof.snapshot import take_snapshot, working_space

PROGRAM = """
import time
import torch
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.01)
x = torch.randn(6400, 32)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x[:, :1]), batch_size=8)
torch.save(net.state_dict(), "checkpoint.pt")
for epoch in range(50):
    for number, (batch, target) in enumerate(loader):
        time.sleep(0.004)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(batch), target)
        loss.backward()
        optimizer.step()
"""
SLEEP = "        time.sleep(0.004)"
pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or importlib.util.find_spec("torch") is None,
    reason="needs PyTorch, and Linux or macOS",
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    (folder / "checkpoint.pt").write_text("of an earlier run")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        subprocess.run([*git, *command], cwd=folder, check=True)
    return folder


def state(folder: Path) -> dict[str, str]:
    """The content of all files, of git's too."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def patch_of(*changes: tuple[str, str]) -> str:
    import difflib

    after = PROGRAM
    for old, new in changes:
        assert old in after
        after = after.replace(old, new)
    lines = (text.splitlines(keepends=True) for text in (PROGRAM, after))
    return "".join(difflib.unified_diff(*lines, "a/train.py", "b/train.py"))


def command(tmp_path: Path, patch: str, *options: str) -> list[str]:
    (tmp_path / "change.diff").write_text(patch)
    return [
        *(sys.executable, "-m", "tb_perfadvisor", "try", "--yes", "--format", "json"),
        *("--patch", str(tmp_path / "change.diff"), *options, "--", sys.executable, "train.py"),
    ]


def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "t").mkdir(exist_ok=True)
    return {
        **os.environ,
        "TMPDIR": str(tmp_path / "t"),
        "PERFADVISOR_DATA_DIR": str(tmp_path / "data"),
        "OMP_NUM_THREADS": "1",
    }


def tried(tmp_path: Path, checkout: Path, patch: str, *options: str) -> dict[str, Any]:
    """What trying a patch says; the checkout must be as it was, and nothing else left."""
    before = state(checkout)
    done = subprocess.run(
        command(tmp_path, patch, *options),
        cwd=checkout,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert state(checkout) == before
    assert [*(tmp_path / "t").iterdir()] == []
    (said,) = json.loads(done.stdout)
    (line,) = (tmp_path / "data" / "proofs.jsonl").read_text().splitlines()
    assert json.loads(line)["verdict"] == said["proof"]["verdict"]
    assert str(checkout) not in line
    assert "change.diff" not in line
    result: dict[str, Any] = said
    return result


@pytest.mark.nightly
def test_a_faster_change_is_proved(tmp_path: Path, checkout: Path) -> None:
    patch = patch_of((SLEEP, "        pass"))
    said = tried(tmp_path, checkout, patch, "--check", "0.*")
    assert said["proof"]["verdict"] == "faster", said
    # Of a step, the sleep of 4 ms or a little more is gone, and at most all of it.
    assert 0.3 < said["proof"]["measured"]["estimate"] < 0.97
    assert said["results"] == {"agreement": "equal", "text": "tensors equal", "advice": ""}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([("batch_size=8", "batch_size=4")], "input elements: 128 per step instead of 256"),
        pytest.param(
            [("        loss.backward()", "        if number % 2: loss.backward()")],
            # As many steps as fit in are counted, and their number may be odd.
            r"backward passes: 0\.(5|49|50)\d* per step instead of 1",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            [("        optimizer.step()", "        if number % 2: optimizer.step()")],
            r"optimizer steps: 0\.(5|49|50)\d* times as many for the same samples",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            [("(net(batch), target)", "(net(batch), target) / 2")],
            "loss: differs by",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_skipped_work_is_refused(
    tmp_path: Path, checkout: Path, changes: list[tuple[str, str]], reason: str
) -> None:
    said = tried(tmp_path, checkout, patch_of((SLEEP, "        pass"), *changes))
    assert said["proof"]["verdict"] == "refused", said
    assert re.match(reason, said["reason"])


def test_a_crash_of_the_change_is_told(tmp_path: Path, checkout: Path) -> None:
    said = tried(tmp_path, checkout, patch_of((SLEEP, "        undefined()")))
    assert said["proof"]["verdict"] == "failed"
    assert "NameError" in said["reason"]


def test_ctrl_c_leaves_nothing(tmp_path: Path, checkout: Path) -> None:
    before = state(checkout)
    # Where the tests run in the background, a shell has SIGINT ignored, also in what they start.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        command(tmp_path, patch_of((SLEEP, "        pass"))),
        cwd=checkout,
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    signal.signal(signal.SIGINT, handler)
    deadline_s = time.monotonic() + 120
    while not [*(tmp_path / "t").glob("*/run-a/status/*.json")]:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    (status,) = (tmp_path / "t").glob("*/run-a/status/*.json")
    program = int(status.stem)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert [*(tmp_path / "t").iterdir()] == []
    assert state(checkout) == before
    with pytest.raises(ProcessLookupError):
        os.kill(program, 0)


LOADING = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self):
        return 800

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((16,), index / 800), torch.ones(1)

def main():
    net = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    train_loader = DataLoader(Images(), batch_size=8)
    for epoch in range(200):
        for batch, target in train_loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(batch), target)
            loss.backward()
            optimizer.step()

if __name__ == "__main__":
    main()
"""


@pytest.mark.nightly
def test_records_tries_and_shows_what_was_proved(tmp_path: Path, checkout: Path) -> None:
    (checkout / "train.py").write_text(LOADING)
    before = state(checkout)
    ours = [sys.executable, "-m", "tb_perfadvisor"]
    recording = str(tmp_path / "recording")
    options = ("--yes", "--change", "prepared-samples")  # others may bring nothing for minutes
    # Eight images of 2 ms are loaded for each step of about 1 ms, the same ones in each epoch.
    done = subprocess.run(
        [*ours, "try", *options, "--logdir", recording, "--", sys.executable, "train.py"],
        cwd=checkout,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "% faster (" in done.stdout, done.stdout
    assert "predicted: steps take " in done.stdout
    assert "git apply <<'END_OF_PATCH'" in done.stdout
    assert "+++ b/train.py" in done.stdout
    assert state(checkout) == before
    shown = subprocess.run(
        [*ours, "analyze", recording, "--format", "brief"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    (report,) = json.loads(shown.stdout)["reports"]
    assert any("proved: " in (finding["proof"] or "") for finding in report["findings"])


BY_HAND = """
import time
import torch
weight = torch.ones(4, requires_grad=True)
for number in range(100_000):
    loss = ((weight - 3) ** 2).sum()
    loss.backward()
    with torch.no_grad():
        weight -= 0.01 * weight.grad
        weight.grad = None
    time.sleep(0.004)
"""


def test_backward_passes_are_steps_without_an_optimizer(tmp_path: Path, checkout: Path) -> None:
    (checkout / "train.py").write_text(BY_HAND)
    with working_space() as space:
        runner = Runner(
            take_snapshot(checkout, space), space, [sys.executable, "train.py"], checkout
        )
        plan = Plan(begin=12, block_steps=5)
        run = runner.measure(runner.snapshot.directory, "base", plan, 120.0)
    assert (run.problem, run.is_complete) == ("", True)
    begin = run.begin or 0
    assert begin % 5 == 2  # 12, or later on a busy machine
    assert [row.backward_passes for row in run.counters] == [begin + 5 * at for at in range(13)]
    assert run.step_ns is not None
    assert run.step_ns > 4e6  # a sleep of 4 ms
    assert run.series["loss"][:2] == (16.0, pytest.approx(4 * (2 - 0.04) ** 2))


RANKS = """
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
x = torch.full((4, 8), 1.0 + dist.get_rank())
for number in range(100_000):
    optimizer.zero_grad()
    loss = net(x).pow(2).mean()
    loss.backward()
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    time.sleep(0.002)
"""


def test_ranks_of_torchrun_take_turns(tmp_path: Path, checkout: Path) -> None:
    (checkout / "train.py").write_text(RANKS)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py"]
    command = [sys.executable, *launcher]
    with working_space() as space:
        runner = Runner(take_snapshot(checkout, space), space, command, checkout)
        plan = Plan(begin=12, block_steps=5, blocks=6)
        version = runner.snapshot.directory
        runs = runner.measure_in_turns(version, version, "change", plan, 120.0, base_first=True)
        assert processes_of(str(space).encode()) == []
    for run in runs:
        assert (run.problem, run.is_complete) == ("", True)
        # On a busy machine, a program that is still warming up begins some blocks later.
        begin = run.begin or 0
        assert begin % 5 == 2
        # Of rank 0 alone.
        work = [(row.optimizer_steps, row.backward_passes) for row in run.counters]
        assert work == [(begin + 5 * block, begin + 5 * block) for block in range(7)]
    common = min(len(run.series["loss"]) for run in runs)
    assert common > 40
    assert runs[0].series["loss"][:common] == runs[1].series["loss"][:common]
