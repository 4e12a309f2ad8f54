"""Convolutions whose channels are split into groups, and the copies that rearrange the channels.

XLA turns most of them into a convolution with another spatial dimension, the groups. It copies the
operands to layouts with that dimension before, and the result back after.
"""

from __future__ import annotations

import re

from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.product_time import separated_by_window
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, xla_operations
from tb_perfadvisor.trace.hlo_text import Instruction

_PATH = r'op_name="([^"]*)"'


class Grouping(Struct, frozen=True):
    """How a convolution splits its channels."""

    groups: int
    channels: int
    """Input channels of each group."""
    whole_flop: float
    """FLOP of the convolution if all channels were in one group."""


class GroupedConvolution(Struct, frozen=True):
    """A grouped convolution with several channels in each group."""

    operation: XlaOperation
    grouping: Grouping
    copies: tuple[XlaOperation, ...]
    """Copies of its operands and result to other layouts."""


@memoized
def grouped_convolutions(signals: Signals) -> tuple[GroupedConvolution, ...]:
    """The grouped convolutions of the used window, without depthwise ones; costliest first."""
    found = []
    operations = xla_operations(signals)
    for operation in operations:
        grouping = grouping_of(operation.product) if operation.product is not None else None
        if grouping is not None and grouping.channels > 1:
            path = _path_of(operation)
            copies = tuple(
                other
                for other in operations
                if path and other.path == path and other.opcode in ("copy", "transpose")
            )
            found.append(GroupedConvolution(operation, grouping, copies))
    return tuple(found)


@memoized
def rearranging_copies(signals: Signals) -> frozenset[int]:
    """Rows of the `HloTable` of the copies of all grouped convolutions."""
    return frozenset(copy.op for found in grouped_convolutions(signals) for copy in found.copies)


def grouping_of(product: Instruction) -> Grouping | None:
    """The groups of a convolution; None for others, and for matrix products."""
    if product.labels is None or len(product.operands) < 2 or not product.results:
        return None
    kernel, result = product.operands[1], product.results[0]
    inputs, outputs = _size(product, 1, "i"), _size(product, 1, "o")
    if not inputs or not outputs:
        return None
    terms = kernel.elements // outputs
    if product.feature_groups > 1:
        groups = product.feature_groups
        return Grouping(groups, inputs, 2.0 * result.elements * terms * groups)
    if product.batch_groups > 1:
        # In the gradient of the weights, the input channels take the place of the batch.
        groups, channels = product.batch_groups, _size(product, 0, "b")
        return Grouping(groups, channels // groups, 2.0 * result.elements * terms * groups)
    groups, other_dims = separated_by_window(product)
    if groups == 1 or not other_dims:
        return None
    # The window spans the groups, so its terms are those of one group of all channels.
    return Grouping(groups, inputs, 2.0 * result.elements * terms)


def _path_of(operation: XlaOperation) -> str:
    """The framework's name of a convolution."""
    assert operation.product is not None
    found = re.search(_PATH, operation.product.attributes)
    return found[1] if found else operation.path


def _size(product: Instruction, operand: int, role: str) -> int:
    """The size of an operand's dimension by its label; 0 if it has none."""
    assert product.labels is not None
    dim, dims = product.labels[operand].find(role), product.operands[operand].dims
    return dims[dim] if 0 <= dim < len(dims) else 0
