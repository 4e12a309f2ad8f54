"""Matrix products by matrices whose making shows that most of the work is needless."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.program.graph import FasterOperation, mean_ns, total_ns
from tb_perfadvisor.signals.program.structured_products import (
    Structured,
    structured_products,
)

_WORST = {"diagonal": 0.25, "triangle": 0.5, "kronecker": 0.5}
_EXPECTED = {"diagonal": 0.05, "triangle": 0.15, "kronecker": 0.15}
"""What remains of a product at least: a pass over the other factor, a cumulative sum, or two
smaller products, which use the device less well."""
_WHAT = {
    "diagonal": "a diagonal of {:,}",
    "triangle": "a triangle of {:,} rows",
    "kronecker": "a Kronecker product of {:,} rows",
}
_ADVICE = {
    "diagonal": "scaled-rows",
    "triangle": "cumulative-sum",
    "kronecker": "two-small-products",
}


class StructuredProduct(FasterOperations):
    """The step multiplies by a large matrix that zeros, ones or two small matrices make up.

    What it finds
    -------------
    Products by a diagonal matrix, as `jnp.diag` makes it, by blocks along a diagonal, as `jnp.kron`
    with `jnp.eye` does, by a triangle of ones, and by a Kronecker product of any two matrices. The
    embedded program shows how the matrix is made.

    Why it matters
    --------------
    A product by a diagonal matrix scales rows or columns, which takes one multiplication for each
    element instead of one for each element and row. A product by a triangle is a cumulative sum.
    A product by a Kronecker product of two matrices is two products by these.

    How it is measured
    ------------------
    Expected leaves 5 % of the product by a diagonal, low a quarter, and high one part for each
    block. A cumulative sum leaves 15 %, at worst a half. So do products by the factors of a
    Kronecker product, unless they have more of the multiplications. Making the matrix is not
    needed.

    When to ignore
    --------------
    When the matrix is small. A short cumulative sum by a product is fast on a matrix unit.

    How to verify
    -------------
    The product is gone from the step.

    References:
    ----------
    Golub and Van Loan, "Matrix Computations", section 1.2, on structure and efficiency.
    """

    id = "structured-product"
    title = "Use the structure of the matrix, and multiply by its parts"

    minimum_share = Limit(0.03, "share", "Products by small matrices take less than this.")

    needs = (Need.WORK, Need.XLA_OPERATIONS, Need.PROGRAMS)

    noun = "operation"

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The products, of which a part remains, and what makes the matrices."""
        faster: dict[int, FasterOperation] = {}
        for found in structured_products(signals):
            for operation in found.making:
                faster[operation.op] = FasterOperation(operation, 0, 0, 0)
        for found in structured_products(signals):
            now, best = mean_ns(signals, found.product), found.remains
            expected = max(_EXPECTED[found.pattern], best)
            worst = max(_WORST[found.pattern], best)
            faster[found.product.op] = FasterOperation(
                found.product, expected * now, best * now, worst * now
            )
        return list(faster.values())

    def advice(self, signals: Signals) -> tuple[str, ...]:
        """By the pattern of the costliest."""
        return (_ADVICE[_worst(signals).pattern],)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The costliest product."""
        worst = _worst(signals)
        where = f" ({worst.line})" if worst.line else ""
        what = _WHAT[worst.pattern].format(worst.blocks)
        return f"{what}{where}", f"{cost} goes into products by {what}{where}."


def _worst(signals: Signals) -> Structured:
    return max(structured_products(signals), key=lambda one: total_ns(signals, [one.product]))
