"""Operators that compute the metrics of a Keras model, by the name that `run` gives them."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import executions, xla_operations
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32

_SCOPE = "perfadvisor_metrics/"


@memoized
def metric_operators(signals: Signals) -> Int32:
    """Rows of operators on the host that compute metrics in training steps."""
    trace, attribution = signals.trace, signals.attribution
    rows = trace.rows(EventKind.OPERATOR)
    names = trace.events.name[rows]
    wanted = [name for name in distinct(names).tolist() if _SCOPE in trace.strings[name]]
    compiled = executions(signals, [o for o in xla_operations(signals) if _SCOPE in o.path])
    found = np.union1d(rows[is_in(names, wanted)], compiled).astype(np.int32)
    start_ns = trace.events.start_ns[found]
    is_inside = start_ns >= attribution.window_start_ns
    is_inside &= start_ns < attribution.window_end_ns
    inside: Int32 = found[is_inside]
    return inside
