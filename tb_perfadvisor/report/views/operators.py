"""The operators view: the framework's operators by own time, module and source line."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.operators import launched_ns, operator_self_ns
from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.core.synchronization import operator_wait_ns
from tb_perfadvisor.signals.host.call_tree import operator_kind
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in
from tb_perfadvisor.trace.tables import Int32, Int64

MAX_ROWS = 200
"""Per table. Together they hold nearly all of the time of any program."""


class OperatorRow(msgspec.Struct, frozen=True, kw_only=True):
    """Operators of one group, over the used window."""

    operator: str | None
    """None in tables by module or line."""
    module: str | None
    line: str | None
    """Of the user's code: `train.py:12 step`."""
    calls: int
    self_ns: int
    """Time on the host without the operators inside and without waits, on all threads."""
    waiting_ns: int
    """Time in calls that wait for the device: synchronizations and blocking copies."""
    share: float
    """Of the own time of all operators."""
    device_ns: int | None
    """Time of the device work that they launched, without inner operators; None without a
    device."""
    longest_start_ns: int
    """Start of the call with the most own time."""
    longest_ns: int
    """Its duration, with the operators inside."""


class OperatorTable(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by own time or device time, whichever the program has more of; the costliest first."""

    rows: list[OperatorRow]
    truncated: int


class OperatorsView(msgspec.Struct, frozen=True, kw_only=True):
    """The operators of the used window, without those of the input pipeline."""

    calls: int
    self_ns: int
    waiting_ns: int
    by_operator: OperatorTable
    by_module: OperatorTable | None
    """None if no module is known; likewise for lines."""
    by_line: OperatorTable | None
    by_call_site: OperatorTable | None
    """By operator, module and line together; None if neither is known."""


class _Operators(msgspec.Struct, frozen=True):
    """Executions in the used window; columns of shape (n,)."""

    rows: Int32
    self_ns: Int64
    waiting_ns: Int64
    device_ns: Int64
    kind: Int32
    """Index into `kinds`."""
    kinds: tuple[str, ...]


def make_operators_view(signals: Signals, most_rows: int = MAX_ROWS) -> OperatorsView | None:
    """The operators of all threads; None without any."""
    found, origins = _operators(signals), signals.origins
    if not found.rows.size:
        return None
    module, line = origins.module[found.rows], origins.line[found.rows]
    has_module, has_line = bool((module >= 0).any()), bool((line >= 0).any())
    nothing = np.full(len(found.rows), -1, dtype=np.int32)

    def table(kind: Int32, module: Int32, line: Int32) -> OperatorTable:
        return _table(signals, found, (kind, module, line), most_rows)

    return OperatorsView(
        calls=len(found.rows),
        self_ns=int(found.self_ns.sum()),
        waiting_ns=int(found.waiting_ns.sum()),
        by_operator=table(found.kind, nothing, nothing),
        by_module=table(nothing, module, nothing) if has_module else None,
        by_line=table(nothing, nothing, line) if has_line else None,
        by_call_site=table(found.kind, module, line) if has_module or has_line else None,
    )


def _operators(signals: Signals) -> _Operators:
    trace = signals.trace
    events, rows = trace.events, trace.rows(EventKind.OPERATOR)
    is_input = is_in(events.kind, (EventKind.INPUT_WAIT, EventKind.INPUT_WORK))
    rows = rows[~has_ancestor(events.parent, rows, is_input)]
    rows = signals.steps.own(rows)
    device_ns = launched_ns(
        trace, signals.launching_operator, signals.steps.own(signals.device.rows)
    )
    kind, kinds = _kinds(trace, rows)
    # Waiting is not work: it costs what the device does meanwhile, and moves where that moves.
    self_ns = operator_self_ns(trace, rows, signals.launching_operator)
    waiting_ns = np.minimum(operator_wait_ns(trace, rows, signals.launching_operator), self_ns)
    return _Operators(
        rows=rows,
        self_ns=self_ns - waiting_ns,
        waiting_ns=waiting_ns,
        device_ns=device_ns[rows],
        kind=kind,
        kinds=kinds,
    )


def _kinds(trace: Trace, rows: Int32) -> tuple[Int32, tuple[str, ...]]:
    """The kind of each operator: `Conv2D` of `model/conv/Conv2D:Conv2D`, `dot` of `dot.3`."""
    index_of: dict[str, int] = {}
    of_name = np.full(len(trace.strings), -1, dtype=np.int32)
    for name in distinct(trace.events.name[rows]).tolist():
        of_name[name] = index_of.setdefault(operator_kind(trace.strings[name]), len(index_of))
    return of_name[trace.events.name[rows]], tuple(index_of)


def _table(
    signals: Signals, found: _Operators, groups: tuple[Int32, Int32, Int32], most_rows: int
) -> OperatorTable:
    """Group executions by kind, module and line; -1 stands for none."""
    kind, module, line = groups
    events, origins, has_device = (
        signals.trace.events,
        signals.origins,
        signals.device.index is not None,
    )
    first, group = group_rows(kind, module, line)
    count = len(first)
    calls = np.bincount(group, minlength=count)
    # Exact: float64 holds integers up to 2^53 ns, 104 days of work.
    self_ns = np.bincount(group, weights=found.self_ns, minlength=count).astype(np.int64)
    waiting_ns = np.bincount(group, weights=found.waiting_ns, minlength=count).astype(np.int64)
    device_ns = np.bincount(group, weights=found.device_ns, minlength=count).astype(np.int64)
    by_group = np.lexsort((-found.self_ns, group))
    longest = found.rows[by_group[np.searchsorted(group[by_group], np.arange(count))]]
    cost_ns = np.maximum(self_ns + waiting_ns, device_ns)
    all_ns = int(self_ns.sum())

    def name(names: Sequence[str], index: Int32, place: int) -> str | None:
        at = int(index[first[place]])
        return names[at] if at >= 0 else None

    return OperatorTable(
        rows=[
            OperatorRow(
                operator=name(found.kinds, kind, place),
                module=name(origins.names, module, place),
                line=name(origins.lines, line, place),
                calls=int(calls[place]),
                self_ns=int(self_ns[place]),
                waiting_ns=int(waiting_ns[place]),
                share=int(self_ns[place]) / all_ns if all_ns else 0.0,
                device_ns=int(device_ns[place]) if has_device else None,
                longest_start_ns=int(events.start_ns[longest[place]]),
                longest_ns=int(events.duration_ns[longest[place]]),
            )
            for place in np.argsort(-cost_ns, kind="stable")[:most_rows].tolist()
        ],
        truncated=max(count - most_rows, 0),
    )
