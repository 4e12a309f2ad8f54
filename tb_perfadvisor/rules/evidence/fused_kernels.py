"""A table of operators that would be fused."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.rules.evidence.call_sites import MOST_SITES
from tb_perfadvisor.rules.finding import Cell, Column, Table
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.device_work import operators_of
from tb_perfadvisor.signals.host.source_lines import source_line
from tb_perfadvisor.signals.work.fusible_work import FusibleWork
from tb_perfadvisor.trace import KernelFamily
from tb_perfadvisor.trace.tables import Int64

_MOST_NAMES = 6


def fused_kernels(signals: Signals, work: FusibleWork, now_ns: Int64, then_ns: Int64) -> Table:
    """What would be fused, by the operators in it, the costliest first.

    Args:
        signals: Signals of one rank.
        work: The work that would be fused.
        now_ns: The time of each of its rows that counts, shape (n,).
        then_ns: The time of each when fused, shape (n,).
    """
    trace = signals.trace
    order = np.argsort(work.kernel, kind="stable")
    rows, kernel = work.rows[order], work.kernel[order]
    operators = operators_of(signals, rows)
    families = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)[rows]
    names = np.where(operators >= 0, trace.events.name[operators], -1 - families.astype(np.int32))
    # The kernels of one execution of an operator count once.
    is_next = np.ones(len(rows), dtype=bool)
    is_next[1:] = (operators[1:] != operators[:-1]) | (operators[1:] < 0)
    is_next[1:] |= kernel[1:] != kernel[:-1]
    names, owner = names[is_next], kernel[is_next]
    ends = np.flatnonzero(np.diff(owner)) + 1
    kinds: dict[tuple[int, ...], list[int]] = {}
    for number, members in enumerate(np.split(names, ends)) if len(names) else ():
        kinds.setdefault(tuple(members.tolist()), []).append(number)
    count = len(work.operators)
    now = np.bincount(work.kernel, weights=now_ns, minlength=count)
    then = np.bincount(work.kernel, weights=then_ns, minlength=count)
    first = np.searchsorted(kernel, np.arange(count))
    table: list[tuple[Cell, ...]] = []
    for kind, numbers in kinds.items():
        moved = ~work.by_time[numbers]
        known = bool(moved.all())
        table.append(
            (
                _label(signals, kind),
                source_line(signals, int(rows[first[numbers[0]]])) or "",
                len(numbers),
                int(work.now_bytes[numbers].sum()) if known else None,
                int(work.fused_bytes[numbers].sum()) if known else None,
                int(now[numbers].sum()),
                int(then[numbers].sum()),
            )
        )
    table.sort(key=lambda row: -int(row[5] or 0))
    return Table(
        "What would be fused",
        (
            Column("operators", "Operators"),
            Column("source", "Source line"),
            Column("count", "Count", "count"),
            Column("moved_bytes", "Moved now", "bytes"),
            Column("fused_bytes", "Moved if fused", "bytes"),
            Column("total_ns", "Time now", "ns"),
            Column("fused_ns", "Time if fused", "ns"),
        ),
        tuple(table[:MOST_SITES]),
        names_instance=True,
    )


def _label(signals: Signals, names: tuple[int, ...]) -> str:
    """Operators in their order; kernels of unknown operators by what they do."""
    texts = [
        signals.trace.strings[name].removeprefix("aten::")
        if name >= 0
        else KernelFamily(-1 - name).name.lower()
        for name in names[:_MOST_NAMES]
    ]
    more = ("…",) if len(names) > _MOST_NAMES else ()
    return " → ".join((*texts, *more))
