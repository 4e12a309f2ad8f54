"""Programs of several ranks, recorded by this test over gloo: each slow, and fixed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.report.report import Report
from tests.support.recording import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs PyTorch with gloo, on Linux")

PROGRAM = """
import contextlib, sys, torch
import torch.distributed as dist
from torch.multiprocessing import start_processes
from torch.profiler import ProfilerActivity, profile, schedule

folder, world, *kinds = sys.argv[1:]
world = int(world)

def accumulate(keeps_silent):
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    def step(_):
        for index in range(4):
            silent = keeps_silent and index < 3
            with model.no_sync() if silent else contextlib.nullcontext():
                model(torch.randn(64, 512)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return step

def experts(is_even):
    weight = torch.randn(512, 512)
    def step(_):
        # Of 600 tokens on each rank, 200 for each expert; or 100 for all but the last.
        out = [200] * world if is_even else [100] * (world - 1) + [600 - 100 * (world - 1)]
        back = [out[dist.get_rank()]] * world
        tokens, mine = torch.randn(600, 512), torch.empty(sum(back), 512)
        dist.all_to_all_single(mine, tokens, back, out)
        for _ in range(6):
            mine = mine @ weight
        dist.all_to_all_single(tokens, mine, out, back)
    return step

def one_by_one(in_one):
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(40)])
    def step(_):
        model(torch.randn(64, 64)).sum().backward()
        gradients = [one.grad for one in model.parameters()]
        if in_one:
            gradients = [torch.cat([one.flatten() for one in gradients])]
        for one in gradients:
            dist.all_reduce(one)
        model.zero_grad()
    return step

def recorded(kind):
    name, _, twin = kind.partition("-")
    made = {"accumulate": accumulate, "experts": experts, "one_by_one": one_by_one}[name]
    step = made(bool(twin))
    # Ranks do not find each other at once: only then the recording begins.
    for index in range(2):
        step(index)
    def save(recording):
        recording.export_chrome_trace(f"{folder}/{kind}/rank{dist.get_rank()}.pt.trace.json")
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=6),
                 on_trace_ready=save, record_shapes=True) as profiler:
        for index in range(7):
            step(index)
            profiler.step()
    dist.barrier()

def work(rank):
    torch.set_num_threads(1)
    met = f"file://{folder}/.store"
    dist.init_process_group("gloo", init_method=met, rank=rank, world_size=world)
    for kind in kinds:
        recorded(kind)

start_processes(work, nprocs=world, start_method="fork")
"""


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kinds = ("accumulate", "accumulate-no_sync", "one_by_one", "one_by_one-in_one")
    return recorded(tmp_path_factory.mktemp("two"), 2, *kinds)


@pytest.fixture(scope="module")
def three_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("three"), 3, "experts", "experts-even")


def recorded(folder: Path, world: int, *kinds: str) -> Path:
    """A folder of each kind, recorded by the same ranks."""
    for kind in kinds:
        (folder / kind).mkdir()
    run(PROGRAM, "torch", folder, str(folder), str(world), *kinds, GLOO_SOCKET_IFNAME="lo")
    return folder


def saving(report: Report, rule: str) -> float | None:
    """Expected share of a rule's finding; None where it passed, and nothing else will do."""
    for finding in report.findings:
        if finding.rule_id == rule:
            assert finding.saving is not None
            return finding.saving.share_expected
    (status,) = (outcome.status for outcome in report.outcomes if outcome.rule_id == rule)
    assert status == "passed"
    return None


def test_gradients_reduced_in_every_micro_batch(two_ranks: Path) -> None:
    report = analyze(two_ranks / "accumulate")
    (finding,) = (
        finding for finding in report.findings if finding.rule_id == "redundant-all-reduce"
    )
    assert finding.summary.startswith("Gradients are reduced 4 times per optimizer step: 6 of 8")
    assert saving(analyze(two_ranks / "accumulate-no_sync"), "redundant-all-reduce") is None


def test_experts_with_unlike_loads(three_ranks: Path) -> None:
    report = analyze(three_ranks / "experts")
    (finding,) = (finding for finding in report.findings if finding.rule_id == "expert-imbalance")
    # 400 of 600 tokens, where 200 are the mean; on a busy machine another may once come last.
    assert "the most tokens, which has 2.0 times the mean in" in finding.summary
    assert finding.scope.ranks == [2]
    assert saving(analyze(three_ranks / "experts-even"), "expert-imbalance") is None


def test_gradients_reduced_one_by_one(two_ranks: Path) -> None:
    report = analyze(two_ranks / "one_by_one")
    # A weight and a bias of each of 40 layers.
    (finding,) = (finding for finding in report.findings if finding.rule_id == "small-messages")
    assert finding.summary.startswith("80 small collectives per step")
    # On a busy machine, the ranks' collectives may end too far apart to tell waits from transfers.
    limits = finding.saving or finding.bounds
    assert limits is not None
    assert limits.share_high is not None
    assert limits.share_high > 0.1
    assert saving(analyze(two_ranks / "one_by_one-in_one"), "small-messages") is None
