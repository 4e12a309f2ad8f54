"""Copies from the host of weights that a program keeps there, layer by layer.

A batch is copied once, and all layers compute with it. Weights are used by one layer: a program
that keeps them on the host copies those of the next layer, runs its few kernels, and copies again.
So large copies to the device alternate with few kernels. What goes both ways, such as activations
that are moved to the host and back, is no weight.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.device.copy_streams import larger_copies
from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import CopyDirection, EventKind
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.tables import Int32, Int64

_FEWEST_ROUNDS = 4
"""In each step: two or three copies between kernels may be a batch in parts."""
_FEWEST_BYTES = 16 << 20
"""A model that does not fit on a device has layers of tens of mebibytes."""
_MOST_KERNELS = 64
"""A layer of a transformer takes 10 to 40 kernels in eager mode; a whole model takes hundreds."""


class StreamedWeights(Struct, frozen=True):
    """Rounds of copies, and kernels between them."""

    rounds: int
    """In the used window."""
    kernels: int
    """Between two rounds; the median."""
    size_bytes: int
    """In a round; the median."""
    step_bytes: int
    """In a step, or in the window without steps."""


@memoized
def streamed_weights(signals: Signals) -> StreamedWeights | None:
    """The rounds in which weights are copied; None if the copies are not of weights."""
    trace, rows = signals.trace, work_rows(signals)
    events = trace.events
    copied = larger_copies(signals).row
    order = np.sort(np.concatenate([copied, rows[events.kind[rows] == EventKind.KERNEL]]))
    is_copy = is_in(order, copied)
    begins = is_copy & ~np.concatenate([[False], is_copy[:-1]])
    rounds = int(begins.sum())
    steps = max(signals.steps.count, 1)
    if rounds < _FEWEST_ROUNDS * steps:
        return None
    number = np.cumsum(begins) - 1
    size_bytes = _sizes(signals, order[is_copy])
    in_round = np.bincount(number[is_copy], weights=size_bytes, minlength=rounds)
    # Kernels before the first round follow no copy.
    kernels = np.bincount(number[~is_copy & (number >= 0)], minlength=rounds)
    between, median_bytes = int(np.median(kernels)), int(np.median(in_round))
    if not 0 < between <= _MOST_KERNELS or median_bytes < _FEWEST_BYTES:
        return None
    if 2 * int(_sizes(signals, _to_host(signals)).sum()) >= int(size_bytes.sum()):
        return None
    return StreamedWeights(rounds, between, median_bytes, int(size_bytes.sum()) // steps)


def fits_on_device(signals: Signals) -> bool | None:
    """Whether all that a step copies fits into the device's memory at once.

    None if nothing is copied layer by layer, if the size of the memory is unknown, or if the same
    weights may have been copied several times, because the profile has no steps.
    """
    found, facts = streamed_weights(signals), signals.device_facts
    capacity_bytes = None if facts is None else facts.memory_bytes
    if found is None or capacity_bytes is None:
        return None
    if found.step_bytes < capacity_bytes:
        return True
    return False if len(signals.steps) else None


def _to_host(signals: Signals) -> Int32:
    trace, rows = signals.trace, work_rows(signals)
    direction = trace.by_event(trace.copies.row, trace.copies.direction, CopyDirection.UNKNOWN)
    is_to_host = trace.events.kind[rows] == EventKind.COPY
    is_to_host &= direction[rows] == CopyDirection.DEVICE_TO_HOST
    to_host: Int32 = rows[is_to_host]
    return to_host


def _sizes(signals: Signals, rows: Int32) -> Int64:
    copies = signals.trace.copies
    sizes: Int64 = signals.trace.by_event(copies.row, copies.size_bytes, 0)[rows]
    return np.maximum(sizes, 0)
