"""Continuous profiling with the Trainer of Hugging Face Transformers.

from tb_perfadvisor.instrument.transformers import continuous

Trainer(model, args, train_dataset=data, callbacks=[continuous("runs/baseline")]).train()
"""

from __future__ import annotations

import os
from typing import Any


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

    from tb_perfadvisor.instrument.torch import continuous, trainer_callback

    others = ("on_evaluate", "on_save", "on_epoch_begin")
    return trainer_callback(TrainerCallback, continuous(logdir, **settings), "on_step_end", others)
