"""Kernels that leave multiprocessors without work."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import costliest_groups
from tb_perfadvisor.rules.finding import Cell, Column, Finding, Table, costliest
from tb_perfadvisor.rules.savings.faster_device_work import halfway_to_best
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import operators_of, time_within
from tb_perfadvisor.signals.device.occupancy import Occupancy, occupancy
from tb_perfadvisor.signals.host.source_lines import source_line
from tb_perfadvisor.signals.work.achievable_time import COMPUTE_BOUND, most_tiles
from tb_perfadvisor.signals.work.roofline import roofline
from tb_perfadvisor.trace.tables import Float64, Int32, Int64
from tb_perfadvisor.units import format_share


class LowOccupancy(Rule):
    """Long kernels have too few blocks for the device's multiprocessors.

    What it finds
    -------------
    Kernels with fewer blocks than the device has multiprocessors, and kernels whose last wave of
    blocks leaves most multiprocessors idle.

    Why it matters
    --------------
    A block runs on one multiprocessor. Forty blocks on a device with 132 multiprocessors leave 70 %
    of it idle, and so does the second wave of a kernel with 1.3 waves.

    How it is measured
    ------------------
    From the grid, the recorded occupancy and the number of multiprocessors: the part of a kernel's
    time for which multiprocessors have no block. Kernels shorter than the limit do not count,
    because latency dominates them. Neither do matrix products that are bound by memory, or take
    about as long as their shapes allow, and those whose results are too small to fill the device.
    High is all of that time. Expected is half of it, since blocks cannot be split at will. Low is
    0. Where the profile allows it, replaying the steps refines the expected saving.

    When to ignore
    --------------
    When other streams fill the device at the same time; the time in which they run is not counted.

    How to verify
    -------------
    The grids in the table grow beyond the number of multiprocessors.

    References:
    ----------
    NVIDIA, "GPU performance background user's guide", wave quantization and tail effect.
    """

    id = "low-occupancy"
    title = "Launch enough blocks to fill the device"
    category = "compute"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS)
    is_preview = False

    minimum_share = Limit(0.03, "share", "A smaller gain does not justify changing shapes.")
    minimum_duration_ns = Limit(
        10_000, "ns", "Shorter kernels are dominated by start and end, whatever their grid."
    )
    maximum_filled_share = Limit(
        0.6, "share", "With 60 percent of the multiprocessors busy, the others are hard to fill."
    )
    maximum_achieved_share = Limit(
        0.55, "share", "Matrix products that reach more are about as fast as their shapes allow."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when kernels that fill little of the device take much of the step."""
        kernels, events = occupancy(signals), signals.trace.events
        if kernels is None:
            return
        is_underfilled = kernels.filled_share < self.maximum_filled_share  # False where unknown
        is_underfilled &= events.duration_ns[kernels.rows] >= self.minimum_duration_ns
        achievable_ns = _achievable_ns(signals, kernels.rows)
        achieved = achievable_ns / np.maximum(events.duration_ns[kernels.rows], 1)
        is_underfilled &= achieved < self.maximum_achieved_share
        rows = kernels.rows[is_underfilled]
        now_ns = events.duration_ns[rows]
        filled = kernels.filled_share[is_underfilled]
        best_ns = np.maximum(now_ns * filled, achievable_ns[is_underfilled])
        best_ns = np.rint(best_ns).astype(np.int64)
        saving = halfway_to_best(signals, rows, best_ns)
        if self.is_minor(saving.high_ns, signals):
            return
        exposed_ns, facts = saving.claimed_ns, signals.device_facts
        cost_ns = time_within(signals, rows, saving.claims)
        mean = format_share(float((filled * now_ns).sum() / now_ns.sum()))
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into kernels that keep only {mean} of the"
                f" {facts.multiprocessors if facts else 0} multiprocessors busy."
            ),
            saving=saving,
            evidence=(
                _table(signals, kernels, np.flatnonzero(is_underfilled), cost_ns),
                costliest("Longest of these kernels", signals.worker, rows, cost_ns),
            ),
            remedies=advise("larger-batch", "more-work-per-kernel", "autotune"),
        )


def _achievable_ns(signals: Signals, rows: Int32) -> Float64:
    """How long matrix products of these shapes take in practice; 0 for other kernels.

    Infinite for products that more blocks may not help: those bound by memory, and those with a
    result too small to fill the device.
    """
    works, facts = roofline(signals), signals.device_facts
    entry = np.searchsorted(works.rows, rows)
    is_known = works.is_product[entry] & ~np.isnan(works.achievable_ns[entry])
    multiprocessors = (facts.multiprocessors if facts else None) or 0
    can_fill = (most_tiles(works.products) >= multiprocessors)[works.product[entry]]
    needs_all = can_fill & (works.bound[entry] == COMPUTE_BOUND)
    achievable_ns = np.where(needs_all, works.achievable_ns[entry], np.inf)
    return np.where(is_known, achievable_ns, 0.0)


def _table(signals: Signals, kernels: Occupancy, index: Int64, cost_ns: Int64) -> Table:
    trace = signals.trace
    names = trace.events.name[kernels.rows[index]]
    keys: Int64 = np.column_stack((names, kernels.blocks[index])).astype(np.int64)
    rows: list[tuple[Cell, ...]] = []
    for members, total_ns in costliest_groups(keys, cost_ns):
        first = int(index[members[0]])
        operator = int(operators_of(signals, kernels.rows[[first]])[0])
        rows.append(
            (
                trace.name(int(kernels.rows[first])),
                trace.name(operator) if operator >= 0 else None,
                int(kernels.blocks[first]),
                round(float(kernels.waves[first]), 2),
                len(members),
                total_ns,
                source_line(signals, int(kernels.rows[first])) or "",
            )
        )
    return Table(
        "Kernels that fill little of the device",
        (
            Column("kernel", "Kernel"),
            Column("operator", "Operator"),
            Column("blocks", "Blocks", "count"),
            Column("waves", "Waves"),
            Column("count", "Count", "count"),
            Column("total_ns", "Time", "ns"),
            Column("source", "Source line"),
        ),
        tuple(rows),
    )
