"""Time that is spent on converting data types."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import costly_work
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.causes import BUSY
from tb_perfadvisor.signals.device.casts import casts
from tb_perfadvisor.signals.device.weight_unpacking import WeightUnpacking, weight_unpacking
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.units import format_share


class CastOverhead(Rule):
    """The device spends a good part of its time converting data types.

    What it finds
    -------------
    Kernels that cast tensors between floating-point types: copies whose source and target have
    different types, and XLA operations whose result is a conversion. Also kernels that unpack
    weights of 4 or 8 bits, if a matrix product reads next what they write.

    Why it matters
    --------------
    A cast reads and writes a whole tensor and computes nothing. Fused into a neighboring kernel, it
    causes no memory traffic of its own. Weights that are unpacked by a kernel of its own are read
    packed, written in 16 bits and read again: more bytes than weights in 16 bits would move.

    How it is measured
    ------------------
    The time in which nothing else runs on the device. High is all of it. Expected is half of the
    time of pure casts, since some casts between types remain, and a quarter of the time of XLA
    conversions that also compute something. Of unpacking, half is expected: a product that unpacks
    weights itself saves all of it, but not every product can. A cast of unpacked weights is
    expected to go altogether, since the kernel before it can write the type that the product
    reads. Low is 0. Where the profile allows it, replaying the steps refines the expected saving.

    When to ignore
    --------------
    When the casts are those of master weights, once per step, and the batch cannot grow.

    How to verify
    -------------
    The kernels in the table are gone or run less often, and results agree within the tolerance of
    the narrower type.

    References:
    ----------
    PyTorch documentation, "Automatic Mixed Precision package", list of operators that cast;
    JAX documentation, "Type promotion semantics".
    """

    id = "cast-overhead"
    title = "Convert between data types less often"
    category = "precision"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS)
    is_preview = False

    minimum_busy_share = Limit(
        0.1, "share", "The casts of mixed precision take up to a tenth of the device's time."
    )
    minimum_share = Limit(0.02, "share", "A smaller gain does not justify the search.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when casts take a good part of the device's time."""
        cast, unpacking = casts(signals), weight_unpacking(signals)
        rows = np.concatenate([cast.rows, unpacking.rows])
        now_ns = signals.trace.events.duration_ns[rows]
        is_pure = np.append(cast.is_pure, np.ones(len(unpacking.rows), dtype=bool))
        then_ns = np.where(is_pure, now_ns // 2, now_ns * 3 // 4)
        then_ns[is_in(rows, unpacking.casts)] = 0
        saving = faster_device_work(signals, rows, then_ns, basis="heuristic")
        exposed_ns, busy_ns = saving.claimed_ns, signals.attribution.total_ns(*BUSY)
        if self.is_minor(exposed_ns, signals) or exposed_ns < self.minimum_busy_share * busy_ns:
            return
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} goes into converting data types"
                f" ({count_per_step(len(rows), 'kernel', signals)}),"
                f" {format_share(exposed_ns / busy_ns)} of the device's busy time."
                f"{_unpacking_sentence(signals, unpacking)}"
            ),
            saving=saving,
            evidence=costly_work("casts", signals, rows, saving.claims),
            remedies=advise(
                *(("unpacking-products",) if len(unpacking.rows) else ()),
                "compile",
                "bfloat16-weights",
                "cast-once",
            ),
        )


def _unpacking_sentence(signals: Signals, unpacking: WeightUnpacking) -> str:
    rows = np.concatenate([unpacking.rows, unpacking.casts])
    if not len(rows):
        return ""
    unpacked_ns = int(signals.trace.events.duration_ns[rows].sum())
    return (
        f" Unpacking weights for the products that follow takes {per_step(unpacked_ns, signals)}."
    )
