"""Many small copies to the device where one would do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import numpy as np

from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import work_by_call_site
from tb_perfadvisor.rules.finding import Finding, Remedy, Saving, costliest
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

_REMEDIES = (
    Remedy(
        text="Put small values into one tensor on the host, and copy that.",
        snippet=(
            "packed = torch.stack([lengths, offsets, weights]).pin_memory()\n"
            "lengths, offsets, weights = packed.to(device, non_blocking=True).unbind()"
        ),
        framework="pytorch",
        reference="https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
    ),
    Remedy(
        text="Make constants on the device once, not from Python numbers in every step.",
        snippet="scale = torch.full((), 0.5, device=device)  # before the loop",
        framework="pytorch",
        reference="https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    Remedy(
        text="Transfer the whole tree of arrays in one call.",
        snippet="batch = jax.device_put(batch)  # a dict of arrays, not array by array",
        framework="jax",
        reference="https://docs.jax.dev/en/latest/_autosummary/jax.device_put.html",
    ),
    Remedy(
        text="Batch the features in the input pipeline, so that one tensor holds them.",
        snippet="dataset = dataset.map(lambda row: tf.stack([row[name] for name in NUMERIC]))",
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/data_performance",
    ),
)


@cache
def _asking() -> re.Pattern[str]:
    return re.compile(r"aten::(?:copy_|_to_copy|to|lift_fresh|detach_)$")


class TinyCopies(Rule):
    """Small tensors go to the device one by one.

    What it finds
    -------------
    Copies of a few kilobytes from host to device, launched one after the other with nothing
    between.

    Why it matters
    --------------
    A small copy costs its latency and its call, not its bytes: a hundred of them cost nearly a
    hundred times what one with all the bytes would.

    How it is measured
    ------------------
    All but the first of each run of small copies could go with it. High and expected are the
    time in which the device does nothing else than these, and the idle time that their calls
    cause; expected is what the steps save when they are re-timed without them, where the
    profile allows that. Low is nothing: what is copied may become known one by one.

    When to ignore
    --------------
    When the values are read from files one by one and the step does not wait for them.

    How to verify
    -------------
    The trace shows one copy where there were many, and the step's first kernel starts earlier.

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
        65_536, "bytes", "In a copy's latency, five microseconds, a link moves 60 kB (12 GB/s)."
    )
    minimum_count = Limit(
        6, "count", "A batch of several tensors is no more than that many copies each step."
    )
    minimum_share = Limit(0.01, "share", "A hundredth of the step is what one copy must bring.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when runs of small copies cost a good part of the step."""
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
        gone = Shorten(rows, np.zeros(len(rows), dtype=np.int64))
        yield Finding(
            summary=(
                f"{count_per_step(len(rows), 'small copy', signals, plural='small copies')} could"
                f" go with others, {format_bytes(int(size_bytes.mean()))} each on average: they"
                f" cost {per_step(lost_ns, signals)}."
            ),
            saving=Saving(0, lost_ns, lost_ns, claims, "measured", (Remove(calls), gone)),
            evidence=(
                work_by_call_site("Small copies by place", signals, rows, cost_ns),
                costliest("The longest of them", signals.worker, rows, cost_ns),
            ),
            remedies=_REMEDIES,
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
        step = np.searchsorted(signals.steps.start_ns, trace.events.start_ns[rows], side="right")
        follows = is_tiny.copy()
        follows[:1] = False
        follows[1:] &= is_tiny[:-1] & (step[1:] == step[:-1])
        surplus: Int32 = np.sort(rows[follows])
        return surplus


def _calls(signals: Signals, rows: Int32) -> Intervals:
    """When the host makes the copies: in the outermost of the operators that only copy."""
    trace, events = signals.trace, signals.trace.events
    names = distinct(events.name[events.kind == EventKind.OPERATOR]).tolist()
    asking = [name for name in names if _asking().match(trace.strings[name])]
    operators = operators_of(signals, rows)
    is_asking = (operators >= 0) & is_in(events.name[operators], asking)
    call = np.where(is_asking, operators, events.launched_by[rows])
    while True:
        above = operator_around(signals, np.where(is_asking, call, -1))
        climbs = (above >= 0) & is_in(events.name[above], asking)
        if not climbs.any():
            return union(events.start_ns[call], events.end_ns[call])
        call = np.where(climbs, above, call)
