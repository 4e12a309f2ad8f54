"""Continuous profiling with the Trainer of Hugging Face Transformers.

from tb_perfadvisor.instrument.transformers import continuous

Trainer(model, args, train_dataset=data, callbacks=[continuous("runs/baseline")]).train()
"""

from __future__ import annotations

import os
from typing import Any

from tb_perfadvisor.instrument.continuous.profiler import ContinuousProfiler


def continuous(logdir: str | os.PathLike[str], **settings: Any) -> Any:
    """A `TrainerCallback` that records a few steps now and then.

    A step is one of the optimizer; steps of gradient accumulation are parts of it. Evaluation and
    checkpoints do not count as slow steps.

    Args:
        logdir: A run's directory below TensorBoard's log directory.
        **settings: As for `tb_perfadvisor.instrument.torch.continuous`.

    Raises:
        UsageError: If the settings contradict each other.
    """
    from transformers import TrainerCallback

    from tb_perfadvisor.instrument import torch

    class Continuous(TrainerCallback):  # type: ignore[misc]  # not installed where types are checked
        """Counts the Trainer's steps."""

        def __init__(self, profiler: ContinuousProfiler) -> None:
            self.profiler = profiler

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.profiler.step()

        def on_evaluate(self, *_: Any, **__: Any) -> None:
            self.profiler.skip()

        def on_save(self, *_: Any, **__: Any) -> None:
            self.profiler.skip()

        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            self.profiler.skip()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            self.profiler.close()

    return Continuous(torch.continuous(logdir, **settings))
