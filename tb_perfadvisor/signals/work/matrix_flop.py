"""How much a worker computes, whatever time that takes: what ranks can be compared by."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.operator_work import work_of_operator
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in

# Recorded once for each product, whatever calls them and whatever they call.
_COUNTED = frozenset(
    f"aten::{name}"
    for name in ("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward")
)
_ATTENTION = "aten::_scaled_dot_product_"


@memoized
def matrix_flop(signals: Signals) -> float | None:
    """FLOP of the matrix products, convolutions and attention of a used step, by their shapes.

    Returns:
        The mean of the used steps, of those whose inputs tell; None where none do.
    """
    trace, window = signals.trace, signals.attribution
    table, events = trace.operators, trace.events
    at = events.start_ns[table.row]
    names = events.name[table.row]
    counted = [one for one in distinct(names).tolist() if _is_counted(trace.strings[one])]
    own = is_in(names, counted)
    own &= (at >= window.window_start_ns) & (at < window.window_end_ns)
    rows = np.flatnonzero(own)
    if not rows.size:
        return None
    first, group = group_rows(
        *(column[rows] for column in (names, table.shapes, table.dtypes, table.values))
    )
    flop, times = 0.0, np.bincount(group)
    for one, count in zip(rows[first].tolist(), times.tolist(), strict=True):
        work = work_of_operator(
            trace.strings[names[one]],
            trace.text(int(table.shapes[one])),
            trace.text(int(table.dtypes[one])),
            trace.text(int(table.values[one])),
        )
        flop += count * work.flop if work is not None else 0.0
    return flop / signals.steps.count if flop else None


def _is_counted(name: str) -> bool:
    return name in _COUNTED or name.startswith(_ATTENTION)
