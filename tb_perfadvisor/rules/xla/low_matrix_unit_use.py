"""A TPU matrix unit that is mostly idle."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.operator_sums import operator_kinds, operator_sums_table
from tb_perfadvisor.rules.finding import Column, Finding, Table, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.signals.work.matrix_unit import MatrixUnit, matrix_unit
from tb_perfadvisor.trace import Totals
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.units import NS_PER_S, format_share

MOST_OPERATIONS = 30

_ADVICE = ("look-at-other-findings", "activations-in-16-bits")
_PRODUCTS = frozenset({"matmul", "convolution", "attention"})


class LowMatrixUnitUse(Rule):
    """The matrix unit is little used, although the program mostly multiplies matrices.

    What it finds
    -------------
    A low share of the unit's peak over the whole step, in programs that spend a good part of their
    device time on matrix products, with the share that each operation reaches.

    Why it matters
    --------------
    Nearly all of a TPU's arithmetic power is in that unit. Low use is a symptom: other findings say
    what keeps the unit from working, and this one says how much there is to gain.

    How it is measured
    ------------------
    The hardware counter of the unit over the whole profile, where the profile has it. Otherwise,
    the FLOPs that the profile states for matrix products, convolutions and attention, divided by
    the duration of the analyzed steps and by the device's 16-bit peak. If FLOPs are stated for less
    than 90 % of the time of those operations, nothing is reported: unknown does not mean idle. This
    finding has no saving of its own.

    Where a recorder only sums up and states the use, that counts. Such files show neither shapes
    nor idle time between operations, so a use that is not outstanding is reported, too, with the
    operators to look at.

    When to ignore
    --------------
    When the program is memory bound by nature: decoding one token at a time, embeddings.

    How to verify
    -------------
    The share rises as the savings of the other findings are realized.

    References:
    ----------
    Google Cloud, "Cloud TPU performance guide"; OpenXLA, XProf documentation, "Overview page", on
    MXU utilization.
    """

    id = "low-matrix-unit-use"
    title = "Keep the matrix unit busy"
    category = "xla"
    reads_sums = True
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS, Need.PEAKS)
    needs_of_sums = (Need.DEVICE_EVENTS, Need.MATRIX_UNIT)
    is_preview = False

    maximum_use = Limit(
        0.2, "share", "Well-tuned training reaches 0.4 or more, typical training 0.3."
    )
    maximum_stated_use = Limit(
        0.6, "share", "The best training programs reach 0.6, and sums do not show what is missing."
    )
    minimum_product_share = Limit(
        0.3, "share", "With fewer matrix products, the program mostly does other work."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when a program of matrix products uses little of the unit."""
        if signals.trace.totals is not None:
            yield from self._of_sums(signals, signals.trace.totals)
            return
        unit = matrix_unit(signals)
        if (
            unit is None
            or unit.time_share < self.minimum_product_share
            or unit.use > self.maximum_use
        ):
            return
        source = "by its counters" if unit.is_counted else "by the FLOPs of its products"
        has_operations = unit.row.size > 0  # a counter covers no single operations
        rows = unit.row if has_operations else work_rows(signals)
        duration_ns = signals.trace.events.duration_ns[rows]
        longest = costliest("Longest operations", signals.worker, rows, duration_ns)
        yield Finding(
            instance=f"{format_share(unit.use)} of its peak",
            summary=(
                f"The matrix unit reaches {format_share(unit.use)} of its peak, {source}, although"
                f" matrix products take {format_share(unit.time_share)} of the device's busy time."
            ),
            evidence=(_table(signals, unit), longest) if has_operations else (longest,),
            remedies=advise(*_ADVICE),
            severity="low",
        )

    def _of_sums(self, signals: Signals, totals: Totals) -> Iterable[Finding]:
        """Yield a finding from the use that a recorder states."""
        use = totals.matrix_unit_share
        if use is None or use > self.maximum_stated_use:
            return
        kinds = operator_kinds(signals, on_device=True)
        in_products = sum(
            kernel.total_ns for kernel in totals.kernels if kernel.family in _PRODUCTS
        )
        whole_ns = sum(kernel.total_ns for kernel in totals.kernels)
        products = (
            f" Products and convolutions take {format_share(in_products / whole_ns)} of the time of"
            " operators on the device."
            if whole_ns
            else ""
        )
        yield Finding(
            instance=f"{format_share(use)} of its peak",
            summary=(
                f"The matrix units reach {format_share(use)} of their peak, as the profiler states"
                f" for the whole recording.{products}"
            ),
            evidence=(operator_sums_table(kinds, on_device=True),) if kinds else (),
            remedies=advise(
                "look-at-idle-unit", "look-at-other-findings", "activations-in-16-bits"
            ),
            severity="low",
        )


def _table(signals: Signals, unit: MatrixUnit) -> Table:
    """The share of the peak that each operation reaches, the costliest first."""
    names, inverse = unique_inverse(signals.trace.events.name[unit.row])
    total = np.bincount(inverse, weights=signals.trace.events.duration_ns[unit.row])
    flop = np.bincount(inverse, weights=unit.flop)
    count = np.bincount(inverse)
    costliest = np.argsort(-total, kind="stable")[:MOST_OPERATIONS].tolist()
    return Table(
        "Matrix products",
        (
            Column("op", "Operation"),
            Column("count", "Count", "count"),
            Column("total_ns", "Time", "ns"),
            Column("rate", "Rate", "flop/s"),
            Column("use", "Share of peak", "share"),
        ),
        tuple(
            (
                signals.trace.strings[names[index]],
                int(count[index]),
                int(total[index]),
                float(flop[index] * NS_PER_S / max(total[index], 1)),
                float(flop[index] * NS_PER_S / max(total[index], 1) / unit.peak),
            )
            for index in costliest
        ),
    )
