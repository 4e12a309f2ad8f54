"""Products that every device of a program computes alike."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.devices import repeated_products, without_repetition
from tb_perfadvisor.signals.program.graph import FasterOperation, total_ns
from tb_perfadvisor.units import format_share


class RepeatedProducts(FasterOperations):
    """Every device computes the same products.

    What it finds
    -------------
    Programs on several devices with matrix products whose factors are the same everywhere: they
    come from arguments that are not split, or were gathered or reduced over all devices. The
    embedded program states how arguments are split.

    Why it matters
    --------------
    Work that all devices repeat is done no sooner than by one of them. It looks like good use of
    the matrix units, and none of the time brings more samples.

    How it is measured
    ------------------
    High is the time of these products but for the part of one device. Expected is nine tenths of
    it, because gradients or results have to be exchanged then; low is half.

    When to ignore
    --------------
    When each device needs the whole result at once, and exchanging it takes longer than computing
    it.

    How to verify
    -------------
    The shapes of the products are smaller by the number of devices.

    References:
    ----------
    JAX documentation, "Distributed arrays and automatic parallelization".
    """

    id = "repeated-products"
    title = "Split the work over the devices"

    minimum_share = Limit(
        0.1, "share", "Small layers, such as a router's, are often cheaper to repeat than to split."
    )

    noun = "product"
    changes = ("batch-over-devices", "weights-over-devices")

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The products that are the same everywhere."""
        return without_repetition(signals)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """How many devices repeat what."""
        found = repeated_products(signals)
        running, rows = max(found, key=lambda pair: total_ns(signals, pair[0].of(pair[1])))
        devices = running.program.devices
        share = format_share(
            len(rows) / max(len(running.program.rows_of(("dot", "convolution"))), 1)
        )
        return f"{devices} devices compute the same", (
            f"{cost} goes into products that all {devices} devices compute alike ({share} of the"
            " program's products): none of their factors is split over the devices. The use of the"
            " matrix unit counts this work, but useful FLOP are a part of it."
        )
