"""Many small copies to the device where one would do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import work_by_call_site
from tb_perfadvisor.rules.finding import Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import (
    exclusive_time,
    operator_around,
    operators_of,
    time_within,
    work_rows,
)
from tb_perfadvisor.trace import CopyDirection, EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import Intervals, intersect, join, total_ns, union
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.units import format_bytes
from tb_perfadvisor.whatif import Remove, Shorten


@cache
def _copying_operators() -> re.Pattern[str]:
    return re.compile(r"aten::(?:copy_|_to_copy|to|lift_fresh|detach_)$")


class TinyCopies(Rule):
    """Small tensors are copied to the device one by one.

    What it finds
    -------------
    Copies of a few kilobytes from host to device, launched directly one after the other.

    Why it matters
    --------------
    A small copy costs its latency and its call, not its bytes. A hundred small copies cost almost
    a hundred times as much as one copy of all the bytes.

    How it is measured
    ------------------
    In each run of small copies, all but the first could be part of one copy. High is the time in
    which the device does nothing but these copies, plus the idle time that their calls cause.
    Expected is what the steps save in a replay without them, where the profile can be replayed,
    and else the same as high. Low is 0: the values may become known one by one.

    When to ignore
    --------------
    When the values are read from files one by one and the step does not wait for them.

    How to verify
    -------------
    The trace shows one copy in place of many, and the first kernel of the step starts earlier.

    References:
    ----------
    NVIDIA, "CUDA C++ Best Practices Guide", section on data transfer between host and device.
    """

    id = "tiny-copies"
    title = "Copy small tensors to the device together"
    category = "input"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.LAUNCH_LINKS)
    refines = "exposed-copies"

    tiny_bytes = Limit(
        65_536, "bytes", "A link of 12 GB/s moves 60 kB in the latency of a copy, 5 microseconds."
    )
    minimum_count = Limit(
        6, "count", "A batch of several tensors takes up to five copies per step."
    )
    minimum_share = Limit(
        0.01, "share", "Packing tensors is not worth the code for less than 1 % of the step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when runs of small copies cost a large part of the step."""
        trace = signals.trace
        rows = self._surplus(signals)
        steps = max(len(signals.steps), 1)
        if len(rows) < self.minimum_count * steps:
            return
        calls = _calls(signals, rows)
        on_device = exclusive_time(signals, rows)
        claims = join(on_device, intersect(signals.host_idle, calls))
        lost_ns = total_ns(claims)
        if self.is_minor(lost_ns, signals):
            return
        size_bytes = trace.by_event(trace.copies.row, trace.copies.size_bytes, 0)[rows]
        cost_ns = time_within(signals, rows, on_device)
        removed = Shorten(rows, np.zeros(len(rows), dtype=np.int64))
        yield Finding(
            instance=count_per_step(len(rows), "copy", signals, plural="copies"),
            summary=(
                f"Small copies cost {per_step(lost_ns, signals)}:"
                f" {count_per_step(len(rows), 'copy', signals, plural='copies')} of"
                f" {format_bytes(int(size_bytes.mean()))} on average could be part of others."
            ),
            saving=Saving(0, lost_ns, lost_ns, claims, "measured", (Remove(calls), removed)),
            evidence=(
                work_by_call_site("Small copies by call site", signals, rows, cost_ns),
                costliest("Longest small copies", signals.worker, rows, cost_ns),
            ),
            remedies=advise("packed-copies", "constants-on-device"),
        )

    def _surplus(self, signals: Signals) -> Int32:
        """Small copies to the device launched right after another one."""
        trace, rows = signals.trace, work_rows(signals)
        rows = rows[np.argsort(trace.events.launched_by[rows], kind="stable")]
        copies = trace.copies
        direction = trace.by_event(copies.row, copies.direction, CopyDirection.UNKNOWN)[rows]
        size_bytes = trace.by_event(copies.row, copies.size_bytes, -1)[rows]
        is_tiny = (direction == CopyDirection.HOST_TO_DEVICE) & (size_bytes >= 0)
        is_tiny &= size_bytes <= self.tiny_bytes
        is_tiny &= trace.events.launched_by[rows] >= 0
        step = signals.steps.owner[rows]
        follows = is_tiny.copy()
        follows[:1] = False
        follows[1:] &= is_tiny[:-1] & (step[1:] == step[:-1])
        surplus: Int32 = np.sort(rows[follows])
        return surplus


def _calls(signals: Signals, rows: Int32) -> Intervals:
    """When the host launches the copies: the outermost operators that only copy."""
    trace, events = signals.trace, signals.trace.events
    names = distinct(events.name[events.kind == EventKind.OPERATOR]).tolist()
    copying = [name for name in names if _copying_operators().match(trace.strings[name])]
    operators = operators_of(signals, rows)
    is_copying = (operators >= 0) & is_in(events.name[operators], copying)
    call = np.where(is_copying, operators, events.launched_by[rows])
    while True:
        above = operator_around(signals, np.where(is_copying, call, -1))
        climbs = (above >= 0) & is_in(events.name[above], copying)
        if not climbs.any():
            return union(events.start_ns[call], events.end_ns[call])
        call = np.where(climbs, above, call)
