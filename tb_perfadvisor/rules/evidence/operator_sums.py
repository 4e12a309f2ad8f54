"""A recorder's table of operators, by kind."""

from __future__ import annotations

from msgspec import Struct

from tb_perfadvisor.rules.finding import Column, Table
from tb_perfadvisor.signals import Signals


class OperatorKind(Struct, frozen=True):
    """All operators of a type on one side, over the whole recording and all devices."""

    type: str
    count: int
    self_ns: int
    share: float
    """Of the time of all operators on this side."""


def operator_kinds(signals: Signals, *, on_device: bool) -> tuple[OperatorKind, ...]:
    """The kinds of operators on the device or on the host, the costliest first.

    On the host, the operators of an input pipeline count as well: sums do not tell them apart.
    """
    totals = signals.trace.totals
    sums: dict[str, list[int]] = {}
    for operator in totals.operators if totals is not None else ():
        if operator.is_on_device == on_device:
            kind = sums.setdefault(operator.type, [0, 0])
            kind[0] += operator.count
            kind[1] += operator.self_ns
    whole_ns = sum(self_ns for _, self_ns in sums.values())
    kinds = [
        OperatorKind(type_, count, self_ns, self_ns / whole_ns if whole_ns else 0.0)
        for type_, (count, self_ns) in sums.items()
    ]
    return tuple(sorted(kinds, key=lambda kind: -kind.self_ns))


def operator_sums_table(kinds: tuple[OperatorKind, ...], *, on_device: bool) -> Table:
    """The kinds with their mean durations."""
    where = "device" if on_device else "host"
    return Table(
        f"Operators on the {where} in the whole recording, by their own time",
        (
            Column("type", "Type"),
            Column("count", "Count", "count"),
            Column("own_ns", "Own time", "ns"),
            Column("mean_ns", "Mean", "ns"),
            Column("share", "Of the operators' time", "share"),
        ),
        tuple(
            (kind.type, kind.count, kind.self_ns, kind.self_ns // max(kind.count, 1), kind.share)
            for kind in kinds
        ),
    )
