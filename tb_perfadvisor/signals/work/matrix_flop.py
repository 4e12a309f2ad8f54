"""The amount of computation of a rank, regardless of time, for comparing ranks."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.operator_work import work_of_operator
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in

# These are recorded exactly once for each product.
_COUNTED = frozenset(
    f"aten::{name}"
    for name in ("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward")
)
_ATTENTION = "aten::_scaled_dot_product_"


@memoized
def matrix_flop(signals: Signals) -> float | None:
    """FLOP of matrix products, convolutions and attention per used step, from their shapes.

    Returns:
        The mean over the used steps, without operators of unknown shape; None if none are known.
    """
    trace, window = signals.trace, signals.attribution
    table, events = trace.operators, trace.events
    start_ns = events.start_ns[table.row]
    names = events.name[table.row]
    counted = [name for name in distinct(names).tolist() if _is_counted(trace.strings[name])]
    is_used = is_in(names, counted)
    is_used &= (start_ns >= window.window_start_ns) & (start_ns < window.window_end_ns)
    rows = np.flatnonzero(is_used)
    if not rows.size:
        return None
    first, group = group_rows(
        *(column[rows] for column in (names, table.shapes, table.dtypes, table.values))
    )
    flop = 0.0
    for row, count in zip(rows[first].tolist(), np.bincount(group).tolist(), strict=True):
        work = work_of_operator(
            trace.strings[names[row]],
            trace.text(int(table.shapes[row])),
            trace.text(int(table.dtypes[row])),
            trace.text(int(table.values[row])),
        )
        flop += count * work.flop if work is not None else 0.0
    return flop / signals.steps.count if flop else None


def _is_counted(name: str) -> bool:
    return name in _COUNTED or name.startswith(_ATTENTION)
