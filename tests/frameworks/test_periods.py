"""What a step is, by the clock of the recorded program, which stamps the same steps.

No loop marks its steps unless its name says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from tb_perfadvisor import analyze, load
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.memory_use import memory_categories
from tests.support.recording import run

TORCH = """
import json, sys, time, torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

folder, loop = sys.argv[1:3]
torch.manual_seed(0)
x, y, loss = torch.randn(128, 256), torch.randn(128, 1), nn.functional.mse_loss

def network(last):
    return nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(),
                         nn.Linear(256, last))

judge, maker = network(1), network(256)
of_judge, of_maker = (torch.optim.AdamW(m.parameters()) for m in (judge, maker))
lbfgs = torch.optim.LBFGS(judge.parameters(), max_iter=5, tolerance_grad=0, tolerance_change=-1)
single = {p: torch.optim.SGD([p], lr=0.1) for p in maker.parameters()}

def closure():
    of_judge.zero_grad()
    result = loss(judge(x), y)
    result.backward()
    return result

def update_one(parameter):
    single[parameter].step()
    single[parameter].zero_grad()

def step(number):
    if loop == "plain":
        result = closure()  # alive during the update, as in an optimizer with a closure
        of_judge.step()
    elif loop == "closure":
        of_judge.step(closure)
    elif loop == "lbfgs":
        lbfgs.step(closure)
    elif loop == "numbered":
        with record_function(f"step_{number}"):
            closure()
            of_judge.step()
    elif loop == "accumulation":
        of_judge.zero_grad()
        for _ in range(4):
            (loss(judge(x), y) / 4).backward()
        of_judge.step()
    elif loop.startswith("gan"):
        for _ in range(3 if loop == "gan 3:1" else 1):
            of_judge.zero_grad()
            (loss(judge(x), y) + loss(judge(maker(x).detach()), y)).backward()
            of_judge.step()
        of_maker.zero_grad()
        loss(judge(maker(x)), y).backward()
        of_maker.step()
    elif loop == "in backward":
        loss(maker(x), x).backward()

if loop == "in backward":
    for parameter in maker.parameters():
        parameter.register_post_accumulate_grad_hook(update_one)
for number in range(4):
    step(number)
times = [time.perf_counter_ns()]
with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorder:
    for number in range(10):
        step(number)
        times.append(time.perf_counter_ns())
recorder.export_chrome_trace(f"{folder}/rank0.pt.trace.json")
# What is not marked begins with the end of the first update.
first = 0 if loop == "numbered" else 1
durations = [end - start for start, end in zip(times[first:], times[first + 1 :])]
json.dump(durations, open(f"{folder}/clock.txt", "w"))
"""

JAX = """
import json, sys, time, jax
import jax.numpy as jnp

folder, loop = sys.argv[1:3]

def loss(w, x):
    for _ in range(6):
        x = jnp.tanh(x @ w)
    return (x**2).mean()

@jax.jit
def step(w, x):
    value, gradient = jax.value_and_grad(loss)(w, x)
    return w - 0.1 * gradient, value

@jax.jit
def denoise(x, w):
    return jnp.tanh(x @ w) @ w.T

w, x = jnp.eye(512), jnp.ones((512, 512))

def iterate(count):
    global w
    before = None
    for number in range(count):
        if loop == "model calls":
            noisy = x
            for _ in range(6):
                noisy = denoise(noisy, w)
            w, before = step(w, noisy)
            continue
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            w, value = step(w, x)
            if loop == "synchronous":
                float(value)
            elif loop == "lagged" and before is not None:
                float(before)
            before = value
    before.block_until_ready()

iterate(3)
jax.profiler.start_trace(folder)
begin = time.perf_counter_ns()
iterate(8)
end = time.perf_counter_ns()
jax.profiler.stop_trace()
json.dump([(end - begin) / 8], open(f"{folder}/clock.txt", "w"))
"""


@pytest.fixture(scope="module")
def pytorch_loop(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The recording of each loop of PyTorch, made once."""

    @cache
    def recorded(loop: str) -> Path:
        folder = tmp_path_factory.mktemp("loop")
        run(TORCH, "torch", folder, str(folder), loop)
        return folder

    return recorded


def steps_of(folder: Path) -> int:
    """The number of steps, each as long as the program's clock says."""
    report = analyze(folder)
    measured: list[int] = json.loads((folder / "clock.txt").read_text())
    found = report.overview.step_time_ns
    if len(measured) > 1:
        # A busy machine may stop the program between a step's end and its stamp: medians ignore it.
        (recorded,) = load(folder)
        found = median(Signals(recorded).steps.duration_ns.tolist())
    assert found == pytest.approx(median(measured), rel=0.2)
    return report.steps.used + len(report.steps.excluded)


@pytest.mark.parametrize(
    "loop",
    [
        *("plain", "closure", "lbfgs", "numbered", "accumulation", "gan", "gan 3:1"),
        "in backward",
    ],
)
def test_loops_of_pytorch(loop: str, pytorch_loop: Callable[[str], Path]) -> None:
    # From the end of one update to the end of the next: nine, between ten.
    assert steps_of(pytorch_loop(loop)) == (10 if loop == "numbered" else 9)


@pytest.mark.parametrize("loop", ["lagged", "asynchronous", "synchronous", "model calls"])
def test_loops_of_jax(loop: str, tmp_path: Path) -> None:
    # Nothing closes the last iteration of what is not marked.
    run(JAX, "jax", tmp_path, str(tmp_path), loop)
    assert steps_of(tmp_path) == (7 if loop == "model calls" else 8)


def test_memory_is_for_the_same_with_and_without_a_closure(
    pytorch_loop: Callable[[str], Path],
) -> None:
    found = []
    for loop in ("plain", "closure"):
        (recorded,) = load(pytorch_loop(loop))
        categories = memory_categories(Signals(recorded))
        assert categories is not None
        found.append(categories.at_peak)
    assert found[0] == found[1]
