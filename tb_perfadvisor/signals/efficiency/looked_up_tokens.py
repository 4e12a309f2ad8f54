"""Tokens of XLA programs: the rows that the vocabulary's embedding looks up.

Tables of other programs, such as the nodes of a graph or the items of a recommender, look the same.
A vocabulary has an output layer as well: a product with a matrix of the table's size.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import TrackKind
from tb_perfadvisor.trace.integer_groups import distinct

_PRODUCT = re.compile(r" (?:dot|convolution)\(|gemm|matmul")
_MATRIX = re.compile(r"\[(\d{1,15}),(\d{1,15})\]")


@memoized
def looked_up_tokens(signals: Signals) -> float | None:
    """Tokens per step on the device that the profile is of; None if unknown."""
    if not signals.trace.lookups or signals.device.index is None:
        return None
    multiplied, executions = _multiplied_matrices(signals), _executions(signals)
    tokens: Counter[tuple[int, int]] = Counter()
    for lookup in signals.trace.lookups:
        table = (lookup.rows, lookup.width)
        if table in multiplied:
            tokens[table] += lookup.count * executions[lookup.module, lookup.operation]
    return max(tokens.values(), default=0) / signals.steps.count or None


def _multiplied_matrices(signals: Signals) -> set[tuple[int, int]]:
    """The sizes of the matrices that products read or write, in either order of dimensions."""
    hlo = signals.trace.hlo
    texts = signals.trace.texts(distinct(np.concatenate((hlo.product, hlo.text))))
    sizes = {
        (int(rows), int(columns))
        for text in texts
        if _PRODUCT.search(text)
        for rows, columns in _MATRIX.findall(text)
    }
    return sizes | {(columns, rows) for rows, columns in sizes}


def _executions(signals: Signals) -> Counter[tuple[str, str]]:
    """How often the device runs each operation in the used steps, by module and name."""
    trace = signals.trace
    links = trace.hlo_events
    track = trace.events.track[links.row]
    is_counted = links.op >= 0
    is_counted &= trace.tracks.kind[track] == TrackKind.DEVICE_STREAM
    is_counted &= trace.tracks.device[track] == signals.device.index
    is_counted &= signals.steps.owner[links.row] >= 0
    count = np.bincount(links.op[is_counted])
    executions: Counter[tuple[str, str]] = Counter()
    for op in np.flatnonzero(count).tolist():
        name = trace.text(int(trace.hlo.name[op])).lstrip("%")
        executions[trace.text(int(trace.hlo.module[op])), name] += int(count[op])
    return executions
