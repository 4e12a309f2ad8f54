"""Continuous profiling in real loops: PyTorch, Accelerate, HF Trainer, Lightning, Keras
and JAX on the CPU."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tb_perfadvisor import analyze_all
from tb_perfadvisor.instrument.continuous import recorders
from tests.support.recording import run

# With ranks="all", only the number of the step decides, however busy the machine is.
SETTINGS = 'every=60, steps=3, first=20, ranks="all", keep_last=3, keep_slowest=0'
RECORDED = ["step_00000020", "step_00000080", "step_00000140"]
TORCH = f"""
import sys, torch
from tb_perfadvisor.instrument.torch import continuous

net = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
optimizer = torch.optim.SGD(net.parameters(), 0.1)
with continuous(sys.argv[1], model=net, advise=True, {SETTINGS}) as profiler:
    for _ in range(150):
        optimizer.zero_grad()
        net(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        profiler.step()
"""
TRAINER = f"""
import sys, torch
from transformers import Trainer, TrainingArguments
from tb_perfadvisor.instrument.transformers import continuous

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(16, 1)
    def forward(self, x, labels):
        return {{"loss": (self.inner(x) - labels).square().mean()}}

data = [{{"x": torch.ones(16), "labels": torch.ones(1)}} for _ in range(64)]
args = TrainingArguments(sys.argv[1] + "/out", max_steps=150, per_device_train_batch_size=4,
                         report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True)
Trainer(Net(), args, train_dataset=data,
        callbacks=[continuous(sys.argv[1] + "/run", {SETTINGS})]).train()
"""
LIGHTNING = f"""
import sys, torch
import lightning.pytorch as pl
from tb_perfadvisor.instrument.lightning import continuous

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(16, 1)
    def training_step(self, batch, number):
        return self.inner(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

loader = torch.utils.data.DataLoader(torch.ones(256, 16), batch_size=4)
pl.Trainer(max_steps=150, max_epochs=-1, logger=False, enable_checkpointing=False,
           enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
           callbacks=[continuous(sys.argv[1] + "/run", {SETTINGS})]).fit(Net(), loader)
"""
ACCELERATE = f"""
import sys, torch
from accelerate import Accelerator
from tb_perfadvisor.instrument.torch import continuous

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net = torch.nn.Linear(16, 1)
loader = torch.utils.data.DataLoader(torch.ones(1200, 16), batch_size=4)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
with continuous(sys.argv[1] + "/run", {SETTINGS}) as profiler:
    for batch in loader:  # 300 of them, two for each step
        with accelerator.accumulate(net):
            accelerator.backward(net(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            profiler.step()
"""
KERAS = f"""
import os, sys
os.environ["KERAS_BACKEND"] = sys.argv[2]
import keras, numpy as np
from tb_perfadvisor.instrument.keras import continuous

model = keras.Sequential([keras.layers.Dense(32), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
x = np.ones((400, 16), "float32")
model.fit(x, x[:, :1], batch_size=8, epochs=3, verbose=0,
          callbacks=[continuous(sys.argv[1] + "/run", {SETTINGS})])
"""
JAX = f"""
import sys, jax, jax.numpy as jnp
from tb_perfadvisor.instrument.jax import continuous

train = jax.jit(lambda x: jnp.tanh(x @ x) / 64.0)
x = jnp.ones((64, 64))
with continuous(sys.argv[1] + "/run", {SETTINGS}) as profiler:
    for _ in range(150):
        x = train(x).block_until_ready()
        profiler.step()
"""


def said_by(program: str, module: str, folder: Path, *arguments: str) -> str:
    return run(program, module, folder, str(folder), *arguments).stderr


@pytest.mark.parametrize(
    ("program", "module"),
    [
        (TORCH, "torch"),
        (ACCELERATE, "accelerate"),
        (TRAINER, "transformers"),
        (LIGHTNING, "lightning"),
    ],
    ids=["torch", "accelerate", "trainer", "lightning"],
)
def test_pytorch_loops(program: str, module: str, tmp_path: Path) -> None:
    said = said_by(program, module, tmp_path)
    reports = analyze_all(tmp_path)
    assert [report.run.rpartition("/")[2] for report in reports] == RECORDED
    for report in reports:
        assert report.steps.source == "ProfilerStep"
        assert report.steps.used + len(report.steps.excluded) == 3
        assert report.workload.mode == "training"
    assert "3 recordings (" in said
    share = float(said.partition("cost: ")[2].partition("%")[0])
    assert 0 < share < 20
    if program is TORCH:
        assert "Perf Advisor, from step" in said


@pytest.mark.parametrize(
    "backend",
    [
        "tensorflow",
        pytest.param("jax", marks=pytest.mark.nightly),
        pytest.param("torch", marks=pytest.mark.nightly),
    ],
)
def test_keras(backend: str, tmp_path: Path) -> None:
    said = said_by(KERAS, backend, tmp_path, backend)
    reports = analyze_all(tmp_path)
    assert [report.run.rpartition("/")[2] for report in reports] == RECORDED
    assert "3 recordings (" in said
    assert all(report.steps.used for report in reports)


def test_jax(tmp_path: Path) -> None:
    said = said_by(JAX, "jax", tmp_path)
    reports = analyze_all(tmp_path)
    assert [report.steps.source for report in reports] == ["train", "train", "train"]
    assert "3 recordings (" in said


@pytest.mark.parametrize(("short_s", "unmarked"), [(0.0, 0), (1e9, 1)])
def test_what_begins_to_record_short_steps_is_no_step(
    short_s: float, unmarked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(recorders, "_SHORT_S", short_s)
    recorder = recorders.TorchRecorder()
    recorder.start(tmp_path, 20, 3, is_rich=True)
    ended = 20
    while True:
        torch.ones(ended).sum()
        ended += 1
        if recorder.step():
            break
    recorder.stop()
    # A step of warm-up is not recorded, and three are marked.
    assert (ended, recorder.warm_up) == (24 + unmarked, 1 + unmarked)
    (path,) = tmp_path.glob("*.pt.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    marks = [each for each in events if str(each.get("name")).startswith("ProfilerStep#")]
    assert [each["name"] for each in marks] == [
        f"ProfilerStep#{number}" for number in range(21 + unmarked, 24 + unmarked)
    ]
    sums = [each["ts"] for each in events if each.get("name") == "aten::sum"]
    assert any(at < min(each["ts"] for each in marks) for at in sums) == bool(unmarked)
