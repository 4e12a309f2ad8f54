"""How many bytes each all-reduce sends, recorded or inferred from the gradients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tb_perfadvisor.signals import Signals, collectives_of
from tb_perfadvisor.signals.core.collectives import Mask
from tb_perfadvisor.signals.steps.gradient_accumulation import gradient_bytes
from tb_perfadvisor.trace.tables import Float64
from tb_perfadvisor.units import format_bytes

_FP32_BYTES = 4
_HALF_TYPES = {"half", "bfloat16", "c10::half", "c10::bfloat16", "f16", "bf16"}


class AllReduceSizes(NamedTuple):
    """Bytes of each collective, shape (n,), -1 where unknown; and the sum per step, as text."""

    bytes: Float64
    text: str


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
        return AllReduceSizes(size, format_bytes(int(size[size > 0].sum()) // steps))
    parameters, per_step = signals.options.parameters, gradient_bytes(signals)
    if parameters is not None:
        per_step = parameters * _item_bytes(signals, all_reduces)
        text = f"{parameters:,} parameters"
    elif per_step is not None:
        text = f"{format_bytes(per_step)} of gradients"
    else:
        return AllReduceSizes(np.full(len(collectives), -1.0), "")
    duration = np.where(all_reduces, collectives.duration_ns, 0)
    share = duration / max(int(duration.sum()), 1)
    return AllReduceSizes(np.where(all_reduces, per_step * steps * share, -1.0), text)


def _item_bytes(signals: Signals, all_reduces: Mask) -> int:
    """Bytes per gradient element on the wire: from the kernels' data type, else 4."""
    types = {
        dtype.lower()
        for dtype, is_reduced in zip(collectives_of(signals).dtype, all_reduces, strict=True)
        if is_reduced and dtype
    }
    return 2 if types and types <= _HALF_TYPES else _FP32_BYTES
