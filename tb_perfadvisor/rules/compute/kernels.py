"""Kernels and operators that take most of the time, or use the device badly."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.device_work import (
    costly_work,
    counter_tables,
    matrix_products_by_size,
    work_by_call_site,
)
from tb_perfadvisor.rules.evidence.tables import (
    costliest_groups,
)
from tb_perfadvisor.rules.finding import Cell, Column, Finding, Table, costliest
from tb_perfadvisor.rules.savings import faster_device_work, halfway_to_best
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import (
    Occupancy,
    occupancy,
    operators_of,
    time_within,
    work_rows,
)
from tb_perfadvisor.signals.efficiency.costliest_work import CostlyWork, costliest_work
from tb_perfadvisor.signals.host.call_tree import source_line
from tb_perfadvisor.signals.program.excess_work import excess_work
from tb_perfadvisor.signals.tpu.xla_operations import executions, has_tiled_layouts
from tb_perfadvisor.signals.work.matrix_kernels import fills_device, matrix_kernels
from tb_perfadvisor.signals.work.roofline import (
    COMPUTE_BOUND,
    LATENCY_BOUND,
    most_tiles,
    roofline,
)
from tb_perfadvisor.trace import EventKind, KernelFamily
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.tables import Float64, Int32, Int64
from tb_perfadvisor.units import format_share


class DominantKernel(Rule):
    """Work takes much longer than it needs."""

    id = "dominant-kernel"
    title = "Shorten work that takes far longer than it needs"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS, Need.PEAKS)
    is_preview = False

    minimum_share = Limit(
        0.1, "share", "Time beyond what the work needs; of less, other advice says more."
    )
    maximum_achieved_share = 0.5
    """Kernels of libraries reach more than this, and so do fused ones."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        # What a part of a program does in excess has a finding with a price.
        parts = (part.operations for part in excess_work(signals))
        priced = executions(signals, chain.from_iterable(parts))
        works = [w for w in costliest_work(signals) if not is_in(w.rows, priced).any()]
        for work in sorted(works, key=_excess_ns, reverse=True)[:1]:
            needed, excess_ns = work.achieved_share, _excess_ns(work)
            if self.is_minor(round(excess_ns), signals):
                return
            if needed is None or needed >= self.maximum_achieved_share:
                return
            cost_ns = signals.trace.events.duration_ns[work.rows]
            yield Finding(
                instance=f"{work.name} at {work.place}" if work.place else work.name,
                summary=(
                    f"{per_step(work.time_ns, signals)} goes into {work.name}, whose work needs"
                    f" {format_share(needed)} of that at achievable rates (bound by {work.bound})."
                ),
                evidence=(
                    work_by_call_site("Operators that launch it", signals, work.rows, cost_ns),
                    costliest("Longest executions", signals.worker, work.rows, cost_ns),
                    *counter_tables(signals, work.rows),
                ),
                remedies=advise("look-at-kernel"),
                severity="low" if excess_ns < signals.attribution.window_ns / 2 else "medium",
            )


def _excess_ns(work: CostlyWork) -> float:
    """Time beyond what the work needs; 0 if that is unknown."""
    return work.time_ns * max(1 - (1.0 if work.achieved_share is None else work.achieved_share), 0)


class LowOccupancy(Rule):
    """Long kernels have too few blocks for the device's multiprocessors."""

    id = "low-occupancy"
    title = "Launch enough blocks to fill the device"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS)
    is_preview = False

    minimum_share = Limit(0.03, "share", "A smaller gain does not justify changing shapes.")
    minimum_duration_ns = Limit(
        10_000, "ns", "Shorter kernels are dominated by start and end, whatever their grid."
    )
    maximum_filled_share = Limit(
        0.6, "share", "With 60 percent of the multiprocessors busy, the others are hard to fill."
    )
    maximum_achieved_share = 0.55
    """Matrix products that reach more are about as fast as their shapes allow."""

    def check(self, signals: Signals) -> Iterable[Finding]:
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
                *counter_tables(signals, rows),
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


class SlowMatmul(Rule):
    """Matrix kernels take several times as long as their shapes need on this device."""

    id = "slow-matmul"
    title = "Find faster kernels for slow matrix products"
    needs = (Need.DEVICE_EVENTS, Need.SHAPES, Need.PEAKS)
    is_preview = False

    minimum_share = Limit(0.03, "share", "A smaller gain does not justify a search.")
    maximum_achieved_share = Limit(
        0.38,
        "share",
        "NVIDIA's own predictor expects more than this of every product that fills the device.",
    )
    minimum_duration_ns = Limit(
        20_000, "ns", "Shorter kernels are dominated by their start and end."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        # A TPU has no library of kernels to choose from: XLA writes each product itself, and fuses
        # it with other work.
        if has_tiled_layouts(signals):
            return
        rooflines, kernels = roofline(signals), matrix_kernels(signals)
        achievable_ns = rooflines.achievable_ns[kernels.entry]
        achieved = achievable_ns / np.maximum(kernels.duration_ns, 1)
        is_slow = achieved < self.maximum_achieved_share  # False where it is unknown
        is_slow &= kernels.family != KernelFamily.ATTENTION
        is_slow &= kernels.duration_ns >= self.minimum_duration_ns
        is_slow &= rooflines.bound[kernels.entry] != LATENCY_BOUND
        is_slow &= fills_device(signals, kernels)
        slow = kernels.select(is_slow)
        best_ns = np.rint(achievable_ns[is_slow]).astype(np.int64)
        saving = halfway_to_best(signals, slow.rows, best_ns)
        exposed_ns = saving.claimed_ns
        if self.is_minor(exposed_ns, signals):
            return
        cost_ns = time_within(signals, slow.rows, saving.claims)
        mean = best_ns.sum() / slow.duration_ns.sum()
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into matrix kernels that reach"
                f" {format_share(mean)} of the achievable rate for their shapes."
            ),
            saving=saving,
            evidence=(
                matrix_products_by_size("Slow matrix kernels by shape", signals, slow),
                costliest("Longest slow matrix kernels", signals.worker, slow.rows, cost_ns),
                *counter_tables(signals, slow.rows),
            ),
            remedies=advise(
                "autotune", "library-benchmark", "merged-products", "xla-compiled-step"
            ),
        )


class RandomNumberKernels(Rule):
    """The device spends a good part of its time drawing random numbers."""

    id = "random-number-kernels"
    title = "Draw random numbers where they are used"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS)
    is_preview = False

    minimum_share = Limit(0.03, "share", "Dropout in a compiled step takes less than this.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        rows = _random_rows(signals)
        now_ns = signals.trace.events.duration_ns[rows]
        if self.is_minor(int(now_ns.sum()), signals):
            return
        saving = faster_device_work(signals, rows, now_ns // 2, basis="heuristic")
        if self.is_minor(saving.claimed_ns, signals):
            return
        yield Finding(
            summary=(
                f"{per_step(saving.claimed_ns, signals)} goes into drawing random numbers"
                f" ({count_per_step(len(rows), 'kernel', signals)}), which other kernels then read."
            ),
            saving=saving,
            evidence=costly_work("drawing random numbers", signals, rows, saving.claims),
            remedies=advise(
                "compiled-random-numbers", "compile", "hardware-generator", "fewer-random-numbers"
            ),
        )


# tensorflow/core/kernels/random_op_gpu.h; aten/src/ATen/native/cuda/DistributionTemplates.h;
# cuRAND; JAX's jaxlib/gpu/prng_kernels.cu.cc.
_NAMES = regex(
    r"FillPhiloxRandom|distribution_elementwise|curand\w{0,60}kernel|gen_sequenced|ThreeFry2x32",
    re.IGNORECASE,
)


def _random_rows(signals: Signals) -> Int32:
    """Kernels that only draw random numbers."""
    trace, rows = signals.trace, work_rows(signals)
    rows = rows[trace.events.kind[rows] == EventKind.KERNEL]
    random: Int32 = rows[named(trace, rows, _NAMES)]
    return random
