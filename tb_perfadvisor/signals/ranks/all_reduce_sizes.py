"""How many bytes each all-reduce sends, recorded or inferred from the gradients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tb_perfadvisor.signals.core.collectives import Mask
from tb_perfadvisor.signals.ranks.ranks import collectives_of
from tb_perfadvisor.signals.ranks.step_messages import StepMessages, step_messages
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.steps.gradient_accumulation import gradient_bytes
from tb_perfadvisor.trace.tables import Float64
from tb_perfadvisor.units import format_bytes

_FP32_BYTES = 4
_HALF_BYTES = 2


class AllReduceSizes(NamedTuple):
    """What is known of the bytes of all-reduces."""

    bytes: Float64
    """Of each collective of the used window, shape (n,); -1 where unknown."""
    text: str
    """The sum per step in words: `22.3 MiB`; empty if no step is known as a whole."""
    whole: StepMessages | None
    """The all-reduces of whole steps, where sizes were recorded."""


def all_reduce_sizes(signals: Signals, all_reduces: Mask) -> AllReduceSizes:
    """Recorded sizes; if there are none, the gradients' size, spread over all-reduces by time.

    The gradients' size follows from the user's parameter count, or from what autograd accumulates.

    Args:
        signals: The worker's facts.
        all_reduces: Which of its collectives are all-reduces, shape (n,).
    """
    collectives, steps = collectives_of(signals), signals.steps.count
    if collectives.sizes_known:
        size = np.where(all_reduces, collectives.size_bytes, -1).astype(np.float64)
        whole = step_messages(signals, "all-reduce")
        return AllReduceSizes(size, format_bytes(whole.bytes_per_step) if whole else "", whole)
    parameters, per_step = signals.options.parameters, gradient_bytes(signals)
    if parameters is not None:
        per_step = parameters * _item_bytes(signals, all_reduces)
        text = f"{parameters:,} parameters"
    elif per_step is not None:
        text = f"{format_bytes(per_step)} of gradients"
    else:
        return AllReduceSizes(np.full(len(collectives), -1.0), "", None)
    duration = np.where(all_reduces, collectives.duration_ns, 0)
    share = duration / max(int(duration.sum()), 1)
    return AllReduceSizes(np.where(all_reduces, per_step * steps * share, -1.0), text, None)


def _item_bytes(signals: Signals, all_reduces: Mask) -> int:
    """Bytes per gradient element on the wire: from the kernels' data type, else 4."""
    collectives = collectives_of(signals)
    typed = all_reduces & ~collectives.dtype.is_any_of("")
    is_half = typed.any() and bool(collectives.is_16_bit[typed].all())
    return _HALF_BYTES if is_half else _FP32_BYTES
