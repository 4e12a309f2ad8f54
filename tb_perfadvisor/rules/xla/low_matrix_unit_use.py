"""A TPU's matrix unit that does little of what it can."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Remedy, Table, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.signals.work.matrix_unit import MatrixUnit, matrix_unit
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.units import NS_PER_S, format_share

MOST_OPERATIONS = 30

_REMEDIES = (
    Remedy(
        text="See the other findings first: padding, waiting and moving data are what keeps the "
        "unit from work. Where there are none, give it more of it at a time.",
        snippet="batch_per_core = 128 * math.ceil(2 * batch_per_core / 128)",
        reference="https://cloud.google.com/tpu/docs/performance-guide",
    ),
    Remedy(
        text="Multiply in 16 bits: in 32 the unit takes several passes.",
        snippet="policy = tf.keras.mixed_precision.set_global_policy('mixed_bfloat16')",
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/mixed_precision",
    ),
    Remedy(
        text="Multiply in 16 bits: in 32 the unit takes several passes.",
        snippet="layer = flax.linen.Dense(features, dtype=jnp.bfloat16)",
        framework="jax",
        reference="https://flax.readthedocs.io/en/latest/guides/index.html",
    ),
)


class LowMatrixUnitUse(Rule):
    """The matrix unit does a small part of what it can, though the program multiplies most.

    What it finds
    -------------
    A share of the unit's peak that is low over the whole step, in programs that spend a good part
    of their device time on matrix products, with the share that each operation reaches.

    Why it matters
    --------------
    Nearly all of a TPU's arithmetic is in that unit. Its use is no cause by itself: other findings
    say what keeps it from work, and this one how far there is to go.

    How it is measured
    ------------------
    By the hardware's counter of the unit over the whole profile, where the profile has it. Else
    by the FLOP that it states for matrix products, convolutions and attention, over the used
    window and the device's peak in 16 bits. Where they are not stated for nine tenths of those
    operations' time nothing is said: unknown is not idle. It has no saving of its own.

    When to ignore
    --------------
    When the program is bound by memory by nature: decoding one token at a time, embeddings.

    How to verify
    -------------
    The share rises with the savings of the other findings.

    References:
    ----------
    Google Cloud, "Cloud TPU performance guide"; OpenXLA, XProf documentation, "Overview page", on
    MXU utilization.
    """

    id = "low-matrix-unit-use"
    title = "Keep the matrix unit at work"
    category = "xla"
    needs = (Need.DEVICE_EVENTS, Need.TILED_LAYOUTS, Need.PEAKS)

    maximum_use = Limit(
        0.2, "share", "Trainings that are thought good reach 0.4 and more, usual ones 0.3."
    )
    minimum_product_share = Limit(
        0.3, "share", "A program that multiplies in less of its device time is made of other work."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when a program of matrix products uses little of the unit."""
        unit = matrix_unit(signals)
        if (
            unit is None
            or unit.time_share < self.minimum_product_share
            or unit.use > self.maximum_use
        ):
            return
        told_by = "by its counters" if unit.is_counted else "by the FLOP of its products"
        is_told = unit.row.size > 0  # a counter says nothing of single operations
        rows = unit.row if is_told else work_rows(signals)
        duration_ns = signals.trace.events.duration_ns[rows]
        longest = costliest("The longest operations", signals.worker, rows, duration_ns)
        yield Finding(
            summary=(
                f"The matrix unit does {format_share(unit.use)} of what it can, {told_by};"
                f" products take {format_share(unit.time_share)} of the device's busy time."
            ),
            evidence=(_table(signals, unit), longest) if is_told else (longest,),
            remedies=_REMEDIES,
            severity="low",
        )


def _table(signals: Signals, unit: MatrixUnit) -> Table:
    """What each operation reaches of the peak, the costliest first."""
    names, inverse = unique_inverse(signals.trace.events.name[unit.row])
    total = np.bincount(inverse, weights=signals.trace.events.duration_ns[unit.row])
    flop = np.bincount(inverse, weights=unit.flop)
    count = np.bincount(inverse)
    costliest = np.argsort(-total, kind="stable")[:MOST_OPERATIONS].tolist()
    return Table(
        "Matrix products",
        (
            Column("op", "Operation"),
            Column("count", "Times", "count"),
            Column("total_ns", "Time", "ns"),
            Column("rate", "Rate", "flop/s"),
            Column("use", "Of the peak", "share"),
        ),
        tuple(
            (
                signals.trace.strings[names[one]],
                int(count[one]),
                int(total[one]),
                float(flop[one] * NS_PER_S / max(total[one], 1)),
                float(flop[one] * NS_PER_S / max(total[one], 1) / unit.peak),
            )
            for one in costliest
        ),
    )
