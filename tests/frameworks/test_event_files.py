"""Event files and profiles of real training loops, on a CPU; skipped without the framework.

Each program runs in its own process, because frameworks are slow to import and noisy.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor.api.training import describe_runs
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.event_files.run_scalars import read_run
from tb_perfadvisor.ingest.event_files.runs import event_runs
from tests.support.recording import run

pytestmark = pytest.mark.frameworks

TORCH = """
import sys, torch
from torch.utils.tensorboard import SummaryWriter
from tb_perfadvisor.instrument.torch import profile

model = torch.nn.Linear(64, 64)
writer = SummaryWriter(sys.argv[1])

def step(number):
    loss = model(torch.randn(32, 64)).square().mean()
    loss.backward()
    writer.add_scalar("train/loss", loss, number)
    writer.add_scalar("lr", 0.0, number, new_style=True)

for number in range(20):
    step(number)
with profile(sys.argv[1]) as profiler:
    for number in range(20, 35):
        step(number)
        profiler.step()
for number in range(35, 50):
    step(number)
writer.add_histogram("weights", model.weight, 50)
writer.close()
"""

KERAS = """
import sys, keras, numpy as np
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
model.compile("sgd", "mse")
board = keras.callbacks.TensorBoard(sys.argv[1], update_freq=2, write_steps_per_second=True)
data = np.zeros((64, 8), np.float32), np.zeros((64, 4), np.float32)
model.fit(*data, batch_size=4, epochs=2, validation_data=data, callbacks=[board], verbose=0)
"""


def test_pytorch_run_with_a_profile(tmp_path: Path) -> None:
    run(TORCH, "torch", tmp_path, str(tmp_path / "run"))
    (described,) = describe_runs(tmp_path)
    assert described.run == "run"
    training = described.training
    assert training is not None
    assert (training.first_step, training.last_step, training.intervals) == (0, 49, 49)
    (recording,) = training.recordings
    # The profiler skips and warms up for five steps, and records six.
    assert recording.first_step is not None
    assert 20 <= recording.first_step <= 31
    assert recording.profiled_step_ns is not None


def test_keras_run(tmp_path: Path) -> None:
    run(KERAS, "keras", tmp_path, str(tmp_path))
    (event_run,) = event_runs(discover(tmp_path)).values()
    assert event_run.run == "."
    tags = set(read_run(event_run).series)
    assert {"train/epoch_loss", "validation/epoch_loss"} <= tags
    (described,) = describe_runs(tmp_path)
    training = described.training
    assert training is not None
    assert not training.is_per_epoch
    assert training.logged_step is not None
    assert training.logged_step.tag == "train/batch_steps_per_second"
