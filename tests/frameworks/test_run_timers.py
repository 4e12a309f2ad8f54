"""A run of two ranks, timed without a trace by this test, over gloo."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from tb_perfadvisor import analyze
from tb_perfadvisor.contract.model import SeriesEvidence
from tb_perfadvisor.instrument.step_timers import StepTimers
from tb_perfadvisor.machine.facts import RunTimers
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
    samples, ready_s, began_s = Samples(), [], time.perf_counter()
    settings = {"every": 1_000, "steps": 3, "slower_than": None, "publish": True}
    with continuous(f"{folder}/run", **settings) as profiler:
        for batch in torch.utils.data.DataLoader(samples, batch_size=1):
            loss = model(batch).sum()
            sleep(0.015 if rank else 0.005)
            ready_s.append(time.perf_counter() - began_s)
            loss.backward()
            optimizer.step()
            profiler.step()
            began_s = time.perf_counter()
    with open(f"{folder}/told{rank}.json", "w") as file:
        json.dump({"input": samples.slept_s, "ready": ready_s}, file)
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
    assert sum(third) == pytest.approx(told[0]["input"], rel=0.1)
    # Elsewhere, batches are there at once.
    assert sum(seconds for _, seconds in waits) < 1.2 * sum(third)
    # What the program measured itself of the steps that were timed, in parts of 4 steps.
    ready = []
    for rank in (0, 1):
        file = folder / f"run/rank{rank}.run.perfadvisor.json"
        timed = msgspec.json.decode(file.read_bytes(), type=RunTimers).first_step
        of_part: dict[int, list[float]] = defaultdict(list)
        for step in timed:
            of_part[step // 4].append(told[rank]["ready"][step])
        ready.append({part: sum(each) / len(each) for part, each in of_part.items()})
    delays = points["How late rank 1 is over the run, per step"]
    parts = [round(step - 1) // 4 for step, _ in delays]
    assert len(parts) >= 57
    slept = [max(4 * (ready[1][part] - ready[0][part]), 0) for part in parts]
    assert sum(each for _, each in delays) == pytest.approx(sum(slept), rel=0.1)


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


def test_fetches_and_gradients_are_parts_of_a_step(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    timers = StepTimers(tmp_path, lambda: "rank3")
    timers.step_ended(1, is_usual=True)
    timers.begin()
    for number, batch in enumerate(torch.utils.data.DataLoader(torch.ones(6, 4), batch_size=2), 2):
        batch.requires_grad_().sum().backward()
        timers.step_ended(number, is_usual=True)
        timers.begin()
    timers.close()
    (file,) = tmp_path.glob("*.json")
    found = msgspec.json.decode(file.read_bytes(), type=RunTimers)
    for step_ns, input_ns, ready_ns in zip(
        found.step_ns, found.input_ns, found.ready_ns, strict=True
    ):
        assert input_ns is not None
        assert ready_ns is not None
        assert 0 < input_ns < ready_ns < step_ns
