"""Products of tensors that take fewer multiplications in another order."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import Observed
from tb_perfadvisor.rules.examined_operators import ExaminedOperators, place_of_observed
from tb_perfadvisor.rules.finding import Column
from tb_perfadvisor.units import format_share


class ProductOrder(ExaminedOperators):
    """The program multiplies three matrices in the costlier order.

    What it finds
    -------------
    In a PyTorch program, two products in a row, (AB)C, of which A(BC) takes at most 60 % of the
    multiplications, if nothing else but sums reads the first result, and nothing but copies and
    factors of whole rows or columns comes between them. Attention without a softmax is an example:
    with many queries and few channels, keys and values come first.

    Why it matters
    --------------
    The order changes nothing but rounding, and PyTorch keeps the order of the program. The large
    result in between also has to be written and read.

    How it is measured
    ------------------
    `perfadvisor run` follows the results of products through a few steps. Expected is 80 % of the
    share of multiplications that the other order saves, of the time of both products, of what comes
    between them, and of their gradients; small products reach less of the processor's speed. Low is
    half of it, or a quarter on a device, and high is all of it.

    When to ignore
    --------------
    When the first result is needed for something that these steps did not show.

    How to verify
    -------------
    The large result between the products is gone, and the losses agree up to rounding.

    References:
    ----------
    Katharopoulos et al., "Transformers are RNNs" (2020), for attention; PyTorch documentation,
    `torch.linalg.multi_dot`.
    """

    id = "product-order"
    title = "Multiply the small matrices first"
    kinds = ("product order",)
    changes = ("small-products-first",)
    amount = Column("kept", "The other order takes", "share")
    spares = (0.5, 0.8, 1.0)

    def describe(self, observed: Observed, cost: str) -> str:
        """How much the other order takes."""
        return (
            f"{cost} goes into products of three matrices: {observed.operator} of"
            f" {observed.shapes} in {place_of_observed(observed)}, the product that goes with it,"
            f" and what is between them. The other order takes {format_share(observed.amount)} of"
            " the multiplications."
        )
