"""`perfadvisor run` with real programs that know nothing of it."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tb_perfadvisor.api import analyze_all
from tb_perfadvisor.ingest.recordings import split_step

TORCH = """
import torch
net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(300):
    optimizer.zero_grad()
    net(torch.ones(8, 64)).sum().backward()
    optimizer.step()
"""
# The form of torchtitan's trainer: parts of a model with an optimizer each, in a container that is
# an optimizer, too, and accumulated gradients.
TITAN = """
import torch

class Container(torch.optim.Optimizer):
    def __init__(self, parts):
        self.optimizers = [torch.optim.AdamW(part.parameters(), 1e-3) for part in parts]
        super().__init__([each for part in parts for each in part.parameters()], {})
    def step(self, *args, **kwargs):
        for optimizer in self.optimizers:
            optimizer.step(*args, **kwargs)
    def zero_grad(self, *args, **kwargs):
        for optimizer in self.optimizers:
            optimizer.zero_grad(*args, **kwargs)

class Trainer:
    def __init__(self):
        self.parts = [torch.nn.Linear(32, 32) for _ in range(3)]
        self.optimizers = Container(self.parts)
        self.step = 0
    def train_step(self):
        self.optimizers.zero_grad()
        for _ in range(2):
            x = torch.ones(8, 32)
            for part in self.parts:
                x = part(x)
            (torch.nn.functional.mse_loss(x, torch.zeros(8, 32)) / 2).backward()
        for part in self.parts:
            torch.nn.utils.clip_grad_norm_(part.parameters(), 1.0, foreach=True)
        self.optimizers.step()
    def train(self):
        while self.step < 240:
            self.step += 1
            self.train_step()

Trainer().train()
"""
KERAS = """
import keras, numpy as np
model = keras.Sequential([keras.layers.Dense(32), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
x = np.ones((800, 16), "float32")
for _ in range(2):
    model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0)
"""
JAX = """
import time, jax, jax.numpy as jnp
train = jax.jit(lambda x: jnp.tanh(x @ x) / 64.0)
x, began = jnp.ones((64, 64)), time.time()
while time.time() - began < 10:
    x = train(x).block_until_ready()
    time.sleep(0.002)
"""


def recorded(program: str, module: str, folder: Path, **environment: str) -> str:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    command = [sys.executable, "-m", "tb_perfadvisor", "run", "--logdir", str(folder / "run")]
    command += ["--every", "60", "--after", "2", "--", sys.executable, "-c", program]
    done = subprocess.run(
        command,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def test_steps_of_the_optimizer(tmp_path: Path) -> None:
    assert "kept in" in recorded(TORCH, "torch", tmp_path)
    reports = analyze_all(tmp_path)
    assert {report.steps.source for report in reports} == {"ProfilerStep"}
    # The end of the program may cut off the last recording.
    whole = [report for report in reports if report.steps.used >= 5]
    assert whole
    for report in whole:
        assert report.workload.mode == "training", report.workload


def test_a_step_of_several_optimizers_is_one_step(tmp_path: Path) -> None:
    said = recorded(TITAN, "torch", tmp_path)
    assert "kept in" in said
    path = sorted(tmp_path.rglob("*.pt.trace.json.gz"))[0]
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = Counter(event.get("name") for event in events)
    spans = [e for e in events if str(e.get("name")).startswith("Optimizer.step#Container")]
    marks = [e for e in events if str(e.get("name")).startswith("ProfilerStep#")]
    # The end of a step is that of the outermost optimizer: no mark divides its range.
    ends = [at for mark in marks for at in (mark["ts"], mark["ts"] + mark["dur"])]
    assert not [e for e in spans for at in ends if e["ts"] < at < e["ts"] + e["dur"]]
    # Five steps, or more where they were uneven, of three optimizers and of their container.
    assert len(marks) >= 5
    assert names["Optimizer.step#AdamW.step"] == len(marks) * 3
    assert names["Optimizer.step#Container.step"] == len(marks)


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_batches_of_fit(backend: str, tmp_path: Path) -> None:
    assert "kept in" in recorded(KERAS, backend, tmp_path, KERAS_BACKEND=backend)
    # Steps count on from one call of fit to the next: two times two epochs of 100 batches.
    steps = [split_step(report.run)[1] or 0 for report in analyze_all(tmp_path)]
    assert max(steps) > 200
    if backend == "torch":  # its tensors are looked at, as in other programs of PyTorch
        facts = [json.loads(path.read_bytes()) for path in tmp_path.rglob("*.perfadvisor.json")]
        assert any(each.get("examined") for each in facts)


def test_jax_is_recorded_by_time(tmp_path: Path) -> None:
    assert "by time" in recorded(JAX, "jax", tmp_path)
    reports = analyze_all(tmp_path)
    assert {report.framework for report in reports} == {"jax"}
    assert [report for report in reports if report.steps.used > 3]
