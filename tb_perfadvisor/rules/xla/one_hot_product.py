"""Matrix products that only look up rows."""

from __future__ import annotations

from math import nan, prod

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.costly_operations import CostlyOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import memory_bandwidth, stored_bytes
from tb_perfadvisor.signals.tpu.multiplications import product_of
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.units import NS_PER_S


class OneHotProduct(CostlyOperations):
    """A product with a one-hot matrix reads the whole table to look up a few rows.

    What it finds
    -------------
    Matrix products with an operand that compares indices with their positions (an iota), which
    makes a one-hot matrix. The operations inside a fusion show it. If a fusion contains several
    products, the largest one counts.

    Why it matters
    --------------
    The product multiplies every row of the table by 0 or 1. A gather reads only the rows that are
    needed. For tables of more than a few hundred rows, it is several times faster.

    How it is measured
    ------------------
    High assumes that a gather takes the time to read and write the result. Expected assumes that it
    takes three times as long, and at least a sixth of the product's time, because it moves small
    pieces. Low is 0.

    When to ignore
    --------------
    When the table is small, or is split over the chips by rows, so that a gather would need
    communication. In the backward pass, the gradient of a gather is a scatter, which is slow on a
    TPU: compare whole steps.

    How to verify
    -------------
    A gather takes the place of the product, and the step is shorter.

    References:
    ----------
    OpenXLA, "Operation semantics", on Gather; JAX documentation, "jax.nn.one_hot".
    """

    id = "one-hot-product"
    title = "Look rows up by index instead of multiplying by a one-hot matrix"

    minimum_share = Limit(0.03, "share", "A small table takes less than this either way.")
    smallest_table = Limit(
        256,
        "count",
        "The matrix unit multiplies by a small table at once, so a gather is no faster.",
    )

    activity = "goes into products with one-hot matrices"
    noun = "product"
    remaining_share = 1 / 6
    expected_of_best = 3.0
    changes = ("rows-by-index",)

    def selects(self, operation: XlaOperation) -> bool:
        """Whether an operation multiplies a table that is not small by a one-hot matrix."""
        if not operation.is_one_hot or operation.product is None:
            return operation.is_one_hot
        product = product_of(operation.product, nan)
        return product is None or prod(product.contracted) > self.smallest_table

    def best_ns(
        self, signals: Signals, operation: XlaOperation, *, at_peak: bool = False
    ) -> float | None:
        """The time to read and write the result; None if the bandwidth is unknown."""
        bytes_per_s = memory_bandwidth(signals, at_peak=at_peak)
        if bytes_per_s is None:
            return None
        return 2 * stored_bytes(*operation.instruction.results) / bytes_per_s * NS_PER_S
