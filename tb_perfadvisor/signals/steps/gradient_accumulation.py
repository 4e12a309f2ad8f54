"""Gradients: how many backward passes per update, and their size."""

from __future__ import annotations

import re

import numpy as np

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.operator_inputs import parse_inputs
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32

_FORWARD = r"^DistributedDataParallel\.forward$"
_UPDATE = r"^Optimizer\.step#"
_GRADIENT = r"^torch::autograd::AccumulateGrad$"


@memoized
def micro_batches(signals: Signals) -> int:
    """Forward passes per optimizer step, if all steps have equally many; else 1."""
    forward = len(_inside(signals, _FORWARD))
    updates = len(_inside(signals, _UPDATE))
    if updates == 0 or forward % updates or updates != signals.steps.count:
        return 1
    return max(forward // updates, 1)


@memoized
def gradient_bytes(signals: Signals) -> int | None:
    """Bytes of the gradients that one backward pass accumulates; None without shapes."""
    trace, table = signals.trace, signals.trace.operators
    rows = _inside(signals, _GRADIENT)
    if len(rows) == 0 or len(table.row) == 0:
        return None
    slot = np.minimum(np.searchsorted(table.row, rows), len(table.row) - 1)
    slot = slot[(table.row[slot] == rows) & (table.shapes[slot] >= 0)]
    if len(slot) < len(rows):
        return None
    pairs = np.stack([table.shapes[slot], table.dtypes[slot]], axis=1)
    kinds, counts = np.unique(pairs, axis=0, return_counts=True)
    total = 0
    for (shapes, dtypes), count in zip(kinds.tolist(), counts.tolist(), strict=True):
        try:
            inputs = parse_inputs(trace.text(shapes), trace.text(dtypes), "")
        except (TypeError, ValueError):
            return None
        total += count * sum(tensor.size_bytes for tensor in inputs.tensors if tensor is not None)
    return total // (signals.steps.count * micro_batches(signals)) or None


def _inside(signals: Signals, pattern: str) -> Int32:
    """Operators and annotations that match a pattern and begin in the used window."""
    trace = signals.trace
    rows = trace.rows(EventKind.ANNOTATION, EventKind.OPERATOR)
    rows = signals.steps.own(rows)
    names = trace.events.name[rows]
    matcher = re.compile(pattern)
    matching = [name for name in distinct(names).tolist() if matcher.search(trace.strings[name])]
    return rows[is_in(names, matching)]
