"""Copies by direction, and what waits for them."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.rules.amounts import count_per_step
from tb_perfadvisor.rules.evidence.tables import event_count
from tb_perfadvisor.rules.finding import Column, Table
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.copy_streams import copy_waits
from tb_perfadvisor.signals.device.streamed_weights import fits_on_device, streamed_weights
from tb_perfadvisor.trace import CopyDirection, EventKind
from tb_perfadvisor.trace.integer_groups import group_rows
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import format_bytes

_LABELS = {
    CopyDirection.UNKNOWN: "direction unknown",
    CopyDirection.HOST_TO_DEVICE: "host to device",
    CopyDirection.DEVICE_TO_HOST: "device to host",
    CopyDirection.DEVICE_TO_DEVICE: "within the device",
    CopyDirection.PEER_TO_PEER: "device to device",
    CopyDirection.HOST_TO_HOST: "host to host",
}
_PINNING = {1: "pageable", 0: "pinned", -1: ""}


def copies_by_direction(signals: Signals, rows: Int32, exposed: Int64) -> Table:
    """Exposed time by direction and kind of host memory; no bytes if a size is unknown."""
    trace, copies = signals.trace, signals.trace.copies
    pageable = trace.by_event(copies.row, copies.pageable, -1)
    size_bytes = trace.by_event(copies.row, copies.size_bytes, -1)
    is_memset = trace.events.kind[rows] == EventKind.MEMSET
    kinds = (
        is_memset.astype(np.int8),
        trace.by_event(copies.row, copies.direction, CopyDirection.UNKNOWN)[rows],
        pageable[rows],
    )
    groups, inverse = group_rows(*kinds)
    table: list[tuple[str, str, int | None, int | None, int]] = []
    for group, row in enumerate(groups.tolist()):
        is_filled, direction, memory = (int(kind[row]) for kind in kinds)
        members = inverse == group
        sizes = size_bytes[rows[members]]
        table.append(
            (
                "memset" if is_filled else _LABELS[CopyDirection(direction)],
                _PINNING[memory],
                event_count(trace, int(members.sum())),
                int(sizes.sum()) if (sizes >= 0).all() else None,
                int(exposed[members].sum()),
            )
        )
    ranked = sorted(table, key=lambda row: -row[4])
    return Table(
        "Copies that overlap no other work",
        (
            Column("direction", "Direction"),
            Column("memory", "Host memory"),
            Column("count", "Count", "count"),
            Column("size_bytes", "Bytes", "bytes"),
            Column("exposed_ns", "Exposed", "ns"),
        ),
        tuple(ranked),
    )


def copy_wait_table(signals: Signals) -> tuple[Table, ...]:
    """Launched work that waits for copies on other streams; nothing if there is none."""
    waits = copy_waits(signals).waits
    columns = (
        Column("name", "Waiting work"),
        Column("stream", "Stream"),
        Column("copy_streams", "Copies on"),
        Column("count", "Count", "count"),
        Column("waiting_ns", "Waits", "ns"),
    )
    rows = tuple(
        (wait.event, wait.stream, ", ".join(wait.copy_streams), wait.count, wait.waiting_ns)
        for wait in waits
    )
    return (Table("Launched work that waits for copies", columns, rows),) if rows else ()


def weights_in_short(signals: Signals) -> str:
    """A sentence on weights that a program copies from the host; empty if it copies none."""
    found = streamed_weights(signals)
    if found is None:
        return ""
    fits = " All of it would fit into the device's memory." if fits_on_device(signals) else ""
    return (
        f" They look like weights that are kept on the host:"
        f" {count_per_step(found.rounds, 'round', signals)} of copies,"
        f" {format_bytes(found.size_bytes)} each, with {found.kernels}"
        f" {'kernel' if found.kernels == 1 else 'kernels'} between two rounds."
        f"{fits}"
    )
