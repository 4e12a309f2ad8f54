"""Tokens of XLA programs: the rows that the vocabulary's embedding looks up.

Tables of other programs, such as the nodes of a graph or the items of a recommender, look the same.
A vocabulary has an output layer as well: a product with a matrix of the table's size.
"""

from __future__ import annotations

import re

import numpy as np

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import TrackKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.table_lookup import TableLookup

_PRODUCT = re.compile(r" (?:dot|convolution)\(|gemm|matmul")


@memoized
def looked_up_tokens(signals: Signals) -> float | None:
    """Tokens per step on the device that the profile is of; None if unknown."""
    lookups = [lookup for lookup in signals.trace.lookups if _has_output_layer(signals, lookup)]
    if not lookups or signals.device.index is None:
        return None
    tokens: dict[tuple[int, int], int] = {}
    for lookup in lookups:
        table = (lookup.rows, lookup.width)
        tokens[table] = tokens.get(table, 0) + lookup.count * _executions(signals, lookup)
    return max(tokens.values()) / signals.steps.count or None


def _has_output_layer(signals: Signals, lookup: TableLookup) -> bool:
    """Whether a product reads or writes a matrix of the table's size, in either order."""
    sizes = (f"[{lookup.rows},{lookup.width}]", f"[{lookup.width},{lookup.rows}]")
    return any(size in text for text in _products(signals) for size in sizes)


@memoized
def _products(signals: Signals) -> tuple[str, ...]:
    hlo = signals.trace.hlo
    texts = signals.trace.texts(distinct(np.concatenate((hlo.product, hlo.text))))
    return tuple(text for text in texts if _PRODUCT.search(text))


def _executions(signals: Signals, lookup: TableLookup) -> int:
    """How often the busiest device runs the operation in the used steps."""
    trace, window, events = signals.trace, signals.attribution, signals.trace.events
    links, hlo = trace.hlo_events, trace.hlo
    names, modules = trace.texts(hlo.name), trace.texts(hlo.module)
    wanted = [
        row
        for row, (name, module) in enumerate(zip(names, modules, strict=True))
        if name.lstrip("%") == lookup.operation and module == lookup.module
    ]
    rows = links.row[np.isin(links.op, wanted)]
    track, start_ns = events.track[rows], events.start_ns[rows]
    is_counted = trace.tracks.kind[track] == TrackKind.DEVICE_STREAM
    is_counted &= trace.tracks.device[track] == signals.device.index
    is_counted &= (start_ns >= window.window_start_ns) & (start_ns < window.window_end_ns)
    return int(is_counted.sum())
