"""Recorded runs of Python's garbage collector."""

from __future__ import annotations

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import Intervals, union
from tb_perfadvisor.trace.tables import Int32

# PyTorch's collector events (record_python_gc_info), and gc.collect() as PyTorch's and XLA's
# Python tracers name it.
_COLLECTING = frozenset({"Python GC", "<built-in function collect>", "$gc collect"})


@memoized
def garbage_collections(signals: Signals) -> tuple[Int32, Intervals]:
    """Rows of the collections on all threads, and when they ran. All threads wait for them."""
    trace = signals.trace
    events, rows = trace.events, trace.rows(EventKind.PYTHON)
    names = events.name[rows]
    collecting = [i for i in distinct(names).tolist() if trace.strings[i] in _COLLECTING]
    rows = rows[is_in(names, collecting)]
    return rows, union(events.start_ns[rows], events.end_ns[rows])
