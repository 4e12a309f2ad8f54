"""Continuous profiling with Lightning's Trainer.

from tb_perfadvisor.instrument.lightning import continuous

Trainer(callbacks=[continuous("runs/baseline")]).fit(model, loader)
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def continuous(logdir: str | os.PathLike[str], **settings: Any) -> Any:
    """A Lightning `Callback` that records a few steps now and then.

    A step is one training batch. Validation and checkpoints do not count as slow steps.

    Args:
        logdir: A run's directory below TensorBoard's log directory.
        **settings: As for `tb_perfadvisor.instrument.torch.continuous`.

    Raises:
        UsageError: If the settings contradict each other.
    """
    from tb_perfadvisor.instrument.torch import continuous, trainer_callback

    others = ("on_validation_end", "on_save_checkpoint", "on_train_epoch_start")
    profiler = continuous(logdir, **settings)
    return trainer_callback(_lightning().Callback, profiler, "on_train_batch_end", others)


def _lightning() -> Any:
    """The package that the program uses; Lightning has two names."""
    for name in _PACKAGES:
        if name in sys.modules:
            return sys.modules[name]
    try:
        return import_module(_PACKAGES[0])
    except ModuleNotFoundError:
        return import_module(_PACKAGES[1])
