"""Copies to and from arrays that the program keeps in host memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.device.memory_categories import ROOM_SHARE
from tb_perfadvisor.signals.tpu.async_pairs import async_pairs
from tb_perfadvisor.signals.tpu.host_offload import (
    copied_bytes,
    host_bytes,
    is_to_host,
    offload_copies,
    offload_rows,
    offload_waits,
)
from tb_perfadvisor.signals.tpu.xla_operations import executions
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.trace.tables import Int32, Int64


class HostOffloadCopies(Rule):
    """The device waits for arrays that the program keeps in host memory.

    What it finds
    -------------
    Time in which a TPU core only waits for copies whose source or target is in host memory, marked
    `S(5)` in its layout: of whole arrays, or of the slices that a scan keeps there.

    Why it matters
    --------------
    The link to the host is tens of times slower than the device's own memory. Offloading pays off
    where compute hides the copies. Where it does not, every step pays for them.

    How it is measured
    ------------------
    Exposed copy time that lies in such copies and in the operations that wait for them
    (`copy-done`, `dynamic-slice-done`). High is all of it, which is what keeping the arrays on the
    device saves. Low is what overlap alone could hide: at most the rest of the step. Expected is
    high if the arrays fit beside the most that the device holds now; otherwise it is unknown how
    many can stay, and the middle is expected.

    When to ignore
    --------------
    When the arrays fit nowhere else and the batch cannot grow: then the time buys memory.

    How to verify
    -------------
    The `copy-done` operations take next to no time, while the operations before them compute.

    References:
    ----------
    JAX documentation, "Host offloading"; OpenXLA, "Shapes and layout", on memory spaces.
    """

    id = "host-offload-copies"
    title = "Keep arrays on the device, or hide their transfers"
    category = "xla"
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "The first array of a step has no compute to overlap with."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the device waits long for host memory."""
        claims, window_ns = offload_waits(signals), signals.attribution.window_ns
        waited_ns = total_ns(claims)
        if self.is_minor(waited_ns, signals):
            return
        low_ns, rows = min(waited_ns, window_ns - waited_ns), offload_rows(signals)
        cost_ns = time_within(signals, rows, claims)
        is_waiting = cost_ns > 0
        copies = executions(
            signals, [o for o in offload_copies(signals) if not o.opcode.endswith("-start")]
        )
        table = _by_copy(signals, rows, cost_ns)
        yield Finding(
            instance=f"{table.rows[0][0]}, {table.rows[0][1]}",
            summary=(
                f"{per_step(waited_ns, signals)} is spent waiting for arrays in host memory"
                f" ({count_per_step(len(copies), 'copy', signals, plural='copies')}),"
                f" mostly for {table.rows[0][0]}, {table.rows[0][1]}."
            ),
            saving=Saving(
                low_ns,
                waited_ns if _would_fit(signals) else (low_ns + waited_ns) // 2,
                waited_ns,
                claims,
                "measured",
            ),
            evidence=(
                table,
                costliest("Longest waits", signals.worker, rows[is_waiting], cost_ns[is_waiting]),
            ),
            remedies=advise("less-offloading", "offload-by-name", "overlapped-offloading"),
        )


def _would_fit(signals: Signals) -> bool:
    """Whether the device has room for all arrays in host memory, as far as the profile tells."""
    memory = signals.memory
    if memory is None or memory.peak_allocated_bytes is None or memory.capacity_bytes is None:
        return False
    room_bytes = ROOM_SHARE * memory.capacity_bytes - memory.peak_allocated_bytes
    return host_bytes(signals) <= room_bytes


def _by_copy(signals: Signals, rows: Int32, cost_ns: Int64) -> Table:
    """Bytes of each copy, its wait, and the compute that overlaps it; the costliest first."""
    trace, pairs = signals.trace, async_pairs(signals)
    count_of_ops = len(trace.hlo.name)
    op = trace.operations(rows)
    waited = np.bincount(op, weights=cost_ns, minlength=count_of_ops)
    times = np.bincount(op, minlength=count_of_ops)
    hidden = np.bincount(pairs.op, weights=pairs.hidden_ns, minlength=count_of_ops)
    table: list[tuple[str, str, int, int, int, int]] = [
        (
            operation.name,
            "device to host" if is_to_host(operation) else "host to device",
            copied_bytes(operation),
            int(times[operation.op]),
            int(waited[operation.op]),
            int(hidden[operation.op]),
        )
        for operation in offload_copies(signals)
        if waited[operation.op] > 0
    ]
    ranked = sorted(table, key=lambda row: -row[4])
    return Table(
        "Copies to and from host memory",
        (
            Column("op", "Operation"),
            Column("direction", "Direction"),
            Column("size_bytes", "Bytes each", "bytes"),
            Column("count", "Count", "count"),
            Column("waited_ns", "Waited", "ns"),
            Column("hidden_ns", "Overlapped by compute", "ns"),
        ),
        tuple(ranked),
    )
