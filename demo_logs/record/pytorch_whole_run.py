"""Records a whole training run: its scalars, and four profiles over its life.

A small convolutional network trains for 2,400 steps. It logs its loss every ten steps, evaluates
every 400 steps, saves a checkpoint every 600, and once goes back to the last one, as after a crash.
From step 1,500 on, the store that holds the samples answers slowly: the profiles taken before show
no wait for input, the ones after it do.

    python demo_logs/record/pytorch_whole_run.py
"""

from __future__ import annotations

import io
import json
import platform
import shutil
import tempfile
import time
from importlib import metadata
from pathlib import Path

import torch
from neutral_copies import NEUTRAL_HOST, copy_kineto
from pairs import LABEL_SCHEMA, output_directory
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.tensorboard import SummaryWriter

NAME = "pytorch_whole_run"
STEPS = 2_400
LOGGED_EVERY = 10
EVALUATED_EVERY = 400
EVALUATION_BATCHES = 40
SAVED_EVERY = 600
SAVING_S = 1.5
CRASH_AT, RESTART_S = 1_290, 4.0
SLOW_FROM = 1_500
LATENCY_S, SLOW_LATENCY_S = 0.000_1, 0.001_2
PROFILED_AT = (105, 905, 1_705, 2_205)
WARM_UP_STEPS, ACTIVE_STEPS = 2, 5
BATCH_SIZE = 16

Batch = tuple[torch.Tensor, torch.Tensor]


class StoredImages(Dataset[Batch]):
    """Images behind a store with latency."""

    latency_s = LATENCY_S

    def __init__(self) -> None:
        """Make 64 different images."""
        generator = torch.Generator().manual_seed(0)
        self._labels = torch.arange(64) % 10
        colors = torch.rand((10, 3, 1, 1), generator=generator)
        noise = torch.rand((64, 3, 32, 32), generator=generator)
        self._images = 0.3 * colors[self._labels] + 0.7 * noise

    def __len__(self) -> int:
        return STEPS * BATCH_SIZE * 2

    def __getitem__(self, index: int) -> Batch:
        time.sleep(self.latency_s)
        place = index % len(self._images)
        return self._images[place], self._labels[place]

    def all(self) -> Batch:
        """All images at once."""
        return self._images, self._labels


class Training:
    """A model, its data and its steps."""

    def __init__(self, directory: Path) -> None:
        """Begin at step 0."""
        torch.manual_seed(0)
        self._directory = directory
        self._writer = SummaryWriter(str(directory))
        self._model = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 10),
        )
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.005, momentum=0.9)
        self._dataset = StoredImages()
        self._batches = iter(DataLoader(self._dataset, batch_size=BATCH_SIZE))
        self._checkpoint = b""

    def step(self, number: int) -> None:
        """Fetch one batch, train on it, and log every ten steps."""
        self._dataset.latency_s = SLOW_LATENCY_S if number >= SLOW_FROM else LATENCY_S
        images, labels = next(self._batches)
        self._optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self._model(images), labels)
        loss.backward()
        self._optimizer.step()
        if number % LOGGED_EVERY == 0:
            self._writer.add_scalar("train/loss", loss.item(), number)
            self._writer.add_scalar("train/learning_rate", 0.005, number)

    def evaluate(self, number: int) -> None:
        """Log the loss on some batches."""
        with torch.no_grad():
            images, labels = self._dataset.all()
            losses = [
                nn.functional.cross_entropy(self._model(images), labels).item()
                for _ in range(EVALUATION_BATCHES)
            ]
        self._writer.add_scalar("eval/loss", sum(losses) / len(losses), number)

    def save(self) -> None:
        """Keep a checkpoint in a store that takes its time."""
        buffer = io.BytesIO()
        torch.save(self._model.state_dict(), buffer)
        time.sleep(SAVING_S)
        self._checkpoint = buffer.getvalue()

    def restore(self) -> None:
        """Go on from the last checkpoint, with a new event file."""
        self._writer.close()
        time.sleep(RESTART_S)
        self._model.load_state_dict(torch.load(io.BytesIO(self._checkpoint)))
        self._writer = SummaryWriter(str(self._directory))

    def close(self) -> None:
        """Write what is not written yet."""
        self._writer.close()


def train(directory: Path) -> list[int]:
    """Train, evaluate, save and profile.

    Returns:
        The step at which each profile begins.
    """
    training = Training(directory)
    profiler, profiled, has_crashed = None, [], False
    number = 0
    while number <= STEPS:
        if number in PROFILED_AT and number not in profiled:
            profiler = _profiler(directory)
            profiler.start()
            profiled.append(number)
        training.step(number)
        if profiler is not None:
            profiler.step()
            if number == profiled[-1] + WARM_UP_STEPS + ACTIVE_STEPS - 1:
                profiler.stop()
                profiler = None
        if number and number % EVALUATED_EVERY == 0:
            training.evaluate(number)
        if number and number % SAVED_EVERY == 0:
            training.save()
        if number == CRASH_AT and not has_crashed:
            has_crashed = True
            training.restore()
            number = number // SAVED_EVERY * SAVED_EVERY
        number += 1
    training.close()
    return profiled


def _profiler(directory: Path) -> torch.profiler.profile:
    return torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=WARM_UP_STEPS, active=ACTIVE_STEPS),
        on_trace_ready=torch.profiler.tensorboard_trace_handler(
            str(directory), worker_name="worker0", use_gzip=True
        ),
        record_shapes=True,
    )


def copy_run(recorded: Path, directory: Path) -> None:
    """Copy profiles and event files without the machine's name and directories."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for trace in sorted(recorded.glob("*.pt.trace.json.gz")):
        copy_kineto(trace, directory / trace.name)
    for place, events in enumerate(sorted(recorded.glob("events.out.tfevents.*"))):
        seconds = events.name.split(".")[3]
        shutil.copyfile(
            events, directory / f"events.out.tfevents.{seconds}.{NEUTRAL_HOST}.1.{place}"
        )


def main() -> None:
    """Record the run, and write down what it did."""
    output = output_directory(__doc__)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="demo_") as scratch:
        profiled = train(Path(scratch))
        copy_run(Path(scratch), output / NAME)
    facts = {
        "schema": LABEL_SCHEMA,
        "id": NAME,
        "synthetic": False,
        "framework": "pytorch",
        "producer": {"python": platform.python_version(), "torch": metadata.version("torch")},
        "device": "cpu",
        "steps": STEPS,
        "profiled_at": profiled,
        "evaluated_every": EVALUATED_EVERY,
        "saved_every": SAVED_EVERY,
        "restart": [CRASH_AT, CRASH_AT // SAVED_EVERY * SAVED_EVERY],
        "slow_input_from": SLOW_FROM,
        "recorded_with": f"demo_logs/record/{Path(__file__).name}",
        "notes": "One compute thread. Waiting for storage is a sleep: 0.1 ms a sample, and 1.2 ms "
        f"from step {SLOW_FROM:,} on. Other work ran on the machine meanwhile.",
    }
    text = json.dumps(facts, indent=2, ensure_ascii=False)
    (output / NAME / "run.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
