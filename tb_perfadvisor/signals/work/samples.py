"""How many samples a step processes."""

from __future__ import annotations

import re

from tb_perfadvisor.signals.core.event_names import named
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.batch_size import batch_size
from tb_perfadvisor.trace import EventKind

_LOSS = re.compile(
    r"^aten::(cross_entropy_loss|nll_loss_nd|mse_loss|l1_loss|smooth_l1_loss|huber_loss"
    r"|binary_cross_entropy|binary_cross_entropy_with_logits)$"
)
"""Loss functions (aten/src/ATen/native/native_functions.yaml)."""


@memoized
def samples_per_step(signals: Signals) -> int | None:
    """Samples that one rank processes in each used step; None if the profile does not tell.

    The batch size is that of one forward pass, so each step must have exactly one: it fetches one
    batch, or computes one loss.
    """
    if not len(signals.steps):
        return None
    batch = batch_size(signals)
    is_single = _runs_once_per_step(signals, (EventKind.INPUT_WAIT,)) or _runs_once_per_step(
        signals, (EventKind.OPERATOR,), _LOSS
    )
    return batch if is_single else None


def _runs_once_per_step(
    signals: Signals, kinds: tuple[EventKind, ...], pattern: re.Pattern[str] | None = None
) -> bool:
    """Whether as many such events as steps start in the used window."""
    trace = signals.trace
    rows = trace.rows(*kinds)
    rows = signals.steps.own(rows)
    if pattern is not None:
        rows = rows[named(trace, rows, pattern)]
    return len(rows) == len(signals.steps)
