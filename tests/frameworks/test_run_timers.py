"""A run of two ranks, timed without a trace by this test, over gloo."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from tb_perfadvisor import analyze
from tb_perfadvisor.contract.model import SeriesEvidence, TableEvidence
from tests.support.recording import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs PyTorch with gloo, on Linux")

# 240 steps. Rank 1 sleeps 10 ms longer before its gradients, and the batches of steps 81 to 160
# take 20 ms. Sleeping needs no core, and the program itself tells what it took on this machine.
PROGRAM = """
import json, sys, time, torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

folder = sys.argv[1]

def sleep(duration_s):
    began_s = time.perf_counter()
    time.sleep(duration_s)
    return time.perf_counter() - began_s

class Samples(torch.utils.data.Dataset):
    slept_s = 0.0
    def __len__(self):
        return 240
    def __getitem__(self, index):
        if 80 <= index < 160:
            self.slept_s += sleep(0.020)
        return torch.ones(64)

def work(rank):
    from tb_perfadvisor.instrument.torch import continuous
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/.store", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples, late_s = Samples(), 0.0
    settings = {"every": 1_000, "steps": 3, "slower_than": None, "publish": True}
    with continuous(f"{folder}/run", **settings) as profiler:
        for batch in torch.utils.data.DataLoader(samples, batch_size=1):
            loss = model(batch).sum()
            slept_s = sleep(0.015 if rank else 0.005)
            late_s += slept_s - 0.005
            loss.backward()
            optimizer.step()
            profiler.step()
    with open(f"{folder}/told{rank}.json", "w") as file:
        json.dump({"input": samples.slept_s, "late": late_s}, file)
    dist.barrier()

start_processes(work, nprocs=2, start_method="fork")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    run(PROGRAM, "torch", folder, str(folder), GLOO_SOCKET_IFNAME="lo")
    return folder


def test_an_input_bound_third_and_a_late_rank(folder: Path) -> None:
    report = analyze(folder / "run")
    found = {each.rule_id: each for each in report.findings}
    told = [json.loads((folder / f"told{rank}.json").read_text("utf-8")) for rank in (0, 1)]
    stall, late = found["input-stall"], found["straggler"]
    # The rank that records is not the late one, and its recorded steps wait for no input.
    assert "The recorded steps do not wait for it." in stall.summary
    assert "rank 1" in late.title
    points = {
        each.title: [(step, 4 * ns / 1e9) for step, ns in each.points]  # of parts of 4 steps
        for each in (*stall.evidence, *late.evidence)
        if isinstance(each, SeriesEvidence)
    }
    waits = points["Waiting for input over the run, per step"]
    third = [seconds for step, seconds in waits if 81 <= step <= 160]
    assert len(third) == 20
    assert min(third) >= 4 * 0.020
    assert sum(third) == pytest.approx(told[0]["input"], rel=0.05)
    # Elsewhere, batches are there at once.
    assert sum(seconds for _, seconds in waits) < 1.2 * sum(third)
    (table,) = (each for each in late.evidence if isinstance(each, TableEvidence))
    ready_s = {rank: float(ready_ns or 0) / 1e9 for rank, ready_ns, _ in table.rows}
    slept_s = (told[1]["late"] - told[0]["late"]) / 240
    assert ready_s[1] - ready_s[0] == pytest.approx(slept_s, rel=0.2)


def test_scalars_for_tensorboard(folder: Path) -> None:
    tags = {}
    for rank in (0, 1):
        (file,) = (folder / "run/perf_advisor/whole_run" / f"rank{rank}").iterdir()
        tags[rank] = {
            value.tag
            for event in EventFileLoader(str(file)).Load()
            for value in event.summary.value
        }
    assert tags[0] == tags[1] == {"whole_run/step_ms", "whole_run/input_wait_ms"}


def test_the_findings_of_the_run_are_published(folder: Path) -> None:
    (file,) = (each for each in (folder / "run/perf_advisor").iterdir() if each.is_file())
    tags = {
        value.tag for event in EventFileLoader(str(file)).Load() for value in event.summary.value
    }
    assert {"perf_advisor/summary", "perf_advisor/findings/input-stall"} <= tags
