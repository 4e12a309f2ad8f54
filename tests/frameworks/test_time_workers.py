"""Timed workers of the real PyTorch, on a CPU; skipped where it cannot be imported."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from tb_perfadvisor import analyze, load
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.input.loader_workers import worker_batches
from tests.support.recording import run

RECORD = """
import sys, time, pathlib
import torch
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.instrument.torch import profile, time_workers

folder = pathlib.Path(sys.argv[1])
for number in range(4):
    (folder / f"{number}.txt").write_text("x" * 10_000)

class Files(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * 12
    def __getitem__(self, index):
        time.sleep(0.005)
        text = (folder / f"{index % 4}.txt").read_text()
        return torch.tensor([len(text), started[0]])

started = [0]
def init(worker):
    started[0] += 1

loader = torch.utils.data.DataLoader(
    Files(), batch_size=4, num_workers=2, worker_init_fn=init, persistent_workers=True,
)
timed = time_workers(loader)
assert timed is loader and time_workers(loader) is loader and len(loader) == 12
assert isinstance(loader, torch.utils.data.DataLoader)
with profile(str(folder / "runs"), wait=1, warmup=1, active=5) as profiler:
    for epoch in range(2):
        for batch in loader:
            assert batch.tolist() == [[10_000, 1]] * 4  # the program's own function still runs
            torch.ones(8).sum()
            profiler.step()
plain = torch.utils.data.DataLoader(Files(), num_workers=1, persistent_workers=True)
next(iter(plain))
try:
    time_workers(plain)
except UsageError:
    pass
else:
    raise AssertionError("its workers run already")
alone = torch.utils.data.DataLoader(Files())
assert type(time_workers(alone)) is torch.utils.data.DataLoader
"""


def test_a_profile_tells_what_batches_took_in_their_workers(tmp_path: Path) -> None:
    run(RECORD, "torch", tmp_path, str(tmp_path))
    batches = worker_batches(Signals(load(tmp_path / "runs")[0]))
    assert batches is not None
    assert batches.workers == 2
    assert batches.cores >= 1
    assert batches.threads >= 1
    # Each batch reads four files of 10,000 bytes, and sleeps 5 ms before each. Python itself may
    # open one more, such as that of a module.
    assert (min(batches.files.tolist()), median(batches.files.tolist())) == (4, 4)
    assert (batches.read_bytes >= 40_000).all() or set(batches.read_bytes.tolist()) == {-1}
    assert (batches.wall_ns >= 20_000_000).all()
    assert (batches.cpu_ns < batches.wall_ns).all()
    assert set(batches.samples.tolist()) == {4}
    assert (batches.collate_ns < batches.wall_ns // 2).all()
    assert (batches.system_ns <= batches.cpu_ns + 1_000_000).all()


MANY_FILES = """
import sys, time, pathlib
import torch
from tb_perfadvisor.instrument.torch import profile, time_workers

folder = pathlib.Path(sys.argv[1])
for number in range(16):
    (folder / f"{number}.txt").write_text("x" * 10_000)

class Remote(torch.utils.data.Dataset):
    # A file system that takes 4 ms for each file.
    def __len__(self):
        return 16 * 30
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.tensor([len((folder / f"{index % 16}.txt").read_text())])

loader = time_workers(torch.utils.data.DataLoader(Remote(), batch_size=16, num_workers=2))
weights = torch.ones(256, 256)
with profile(str(folder / "runs"), wait=4, warmup=2, active=8) as profiler:
    for batch in loader:
        weights @ weights
        profiler.step()
"""


def test_recorded_workers_that_wait_for_many_files_are_found_and_shown(tmp_path: Path) -> None:
    run(MANY_FILES, "torch", tmp_path, str(tmp_path))
    report = analyze(tmp_path / "runs", Config(with_views=True))
    (finding,) = [each for each in report.findings if each.rule_id == "small-file-reads"]
    assert "16 files for each batch (1 per sample" in finding.summary
    assert report.views is not None
    workers = report.views["input"]["workers"]
    # Each batch waits at least 16 times 4 ms.
    assert workers["waiting_ns"] >= 60_000_000
    assert [workers[name] for name in ("workers", "samples", "files")] == [2, 16, 16]
    assert workers["waiting_ns"] > 3 * (workers["computing_ns"] + (workers["system_ns"] or 0))
