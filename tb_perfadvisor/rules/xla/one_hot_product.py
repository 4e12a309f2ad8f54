"""Matrix products that only look up rows."""

from __future__ import annotations

from math import nan, prod

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.costly_operations import CostlyOperations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.program.one_hot import one_hot_makers, one_hot_operations
from tb_perfadvisor.signals.tpu.memory_time import memory_bandwidth, stored_bytes
from tb_perfadvisor.signals.tpu.multiplications import product_of
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, xla_operations
from tb_perfadvisor.units import NS_PER_S

_LEAST_ROW_NS, _ROW_NS = 1.5, 4.0
"""Of a row that a gather moves, as XLA's compiler schedules gathers for v5e, v5p and v6e."""


class OneHotProduct(CostlyOperations):
    """A product with a one-hot matrix reads the whole table to look up a few rows.

    What it finds
    -------------
    Matrix products with an operand that compares indices with their positions (an iota), which
    makes a one-hot matrix, or with such a matrix times something else. The embedded program shows
    it. Sums of a few such matrices count, too, such as of the experts of a token, and so does what
    makes them. If a fusion contains several products, the largest one counts.

    Why it matters
    --------------
    The product multiplies every row of the table by 0 or 1. A gather reads only the rows that are
    needed. For tables of more than a few hundred rows, it is several times faster.

    How it is measured
    ------------------
    High assumes that a gather takes the time to read and write the result, and 1.5 ns for each row.
    Expected assumes three times as long, 4 ns for each row, and at least a sixth of the product's
    time, because it moves small pieces. Of what makes the matrix, nothing remains at best, and a
    sixth as expected. Low is 0.

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

    needs = (Need.WORK, Need.XLA_OPERATIONS)

    activity = "goes into products with one-hot matrices and making these"
    noun = "operation"
    remaining_share = 1 / 6
    expected_of_best = 3.0
    changes = ("rows-by-index",)

    def selected(self, signals: Signals) -> list[XlaOperation]:
        """Such products, and what makes the one-hot matrix."""
        rows = int(self.smallest_table)
        found = one_hot_operations(signals, smallest_table=rows)
        found |= one_hot_makers(signals, smallest_table=rows)
        return [
            o
            for o in xla_operations(signals)
            if o.op in found or (o.is_one_hot and self.selects(o))
        ]

    def selects(self, operation: XlaOperation) -> bool:
        """Whether the table is not small."""
        if operation.product is None:
            return True
        product = product_of(operation.product, nan)
        return product is None or prod(product.contracted) > self.smallest_table

    def best_ns(
        self, signals: Signals, operation: XlaOperation, *, at_peak: bool = False
    ) -> float | None:
        """The time to read and write the result; None if the bandwidth is unknown.

        No look-up needs the matrix.
        """
        if operation.op in one_hot_makers(signals, smallest_table=int(self.smallest_table)):
            return 0.0
        bytes_per_s = memory_bandwidth(signals, at_peak=at_peak)
        if bytes_per_s is None:
            return None
        results = operation.instruction.results
        rows = sum(shape.elements // max(shape.dims[-1], 1) for shape in results if shape.dims)
        rows_ns = rows * (_LEAST_ROW_NS if at_peak else _ROW_NS / self.expected_of_best)
        return max(2 * stored_bytes(*results) / bytes_per_s * NS_PER_S, rows_ns)
