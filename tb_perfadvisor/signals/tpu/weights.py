"""Products of a few rows, which take as long as it takes to read their weights."""

from __future__ import annotations

from collections import Counter
from math import nan, prod

from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import memory_bandwidth
from tb_perfadvisor.signals.tpu.multiplications import product_of
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, xla_operations
from tb_perfadvisor.units import NS_PER_S

_LEAST_ELEMENTS = 1 << 20
"""Smaller matrices may be activations, and take a microsecond or two."""
# What these operations return was not computed.
_MOVING = ("copy", "slice", "dynamic-slice", "all-gather")
_AGREEMENT = 0.9
"""Share of the weights that are multiplied by the same number of rows."""


class ReadWeights(Struct, frozen=True):
    """Weights that a step reads for a few rows."""

    rows: int
    """Rows that they are multiplied by."""
    size_bytes: int
    """Of all executions in the used window."""
    read_ns: float
    """What the memory takes for them at the bandwidth of the data sheet."""
    operations: tuple[XlaOperation, ...]


@memoized
def read_weights(signals: Signals) -> ReadWeights | None:
    """Weights whose products have the same number of rows; None if rows or bandwidth are unknown.

    Weights are the large matrices among the operands of products without a batch, unless another
    operation computes them. Wherever they are when the product begins, they come from the device's
    memory. Where nothing computes the other operand either, the first one is no weight.
    """
    bytes_per_s = memory_bandwidth(signals, at_peak=True)
    if bytes_per_s is None:
        return None
    counts = dict(zip(signals.hlo.op.tolist(), signals.hlo.count.tolist(), strict=True))
    size_bytes: Counter[int] = Counter()
    operations: dict[int, list[XlaOperation]] = {}
    all_operations = xla_operations(signals)
    computed = {o.name for o in all_operations if not o.opcode.startswith(_MOVING)}
    for operation in all_operations:
        names, operands = operation.instruction.operand_names, operation.instruction.operands
        weights = [
            shape
            for name, shape in zip(names, operands, strict=False)
            if len(shape.dims) == 2 and shape.elements >= _LEAST_ELEMENTS and name not in computed
        ]
        rows = _rows(operation) if weights else None
        if rows is not None and not _reads_tokens(operation, computed):
            size_bytes[rows] += counts[operation.op] * sum(shape.padded_bytes for shape in weights)
            operations.setdefault(rows, []).append(operation)
    if not size_bytes:
        return None
    ((rows, most_bytes),) = size_bytes.most_common(1)
    if most_bytes < _AGREEMENT * size_bytes.total():
        return None
    read_ns = most_bytes / bytes_per_s * NS_PER_S
    return ReadWeights(rows, most_bytes, read_ns, tuple(operations[rows]))


def _reads_tokens(operation: XlaOperation, computed: set[str]) -> bool:
    """Whether the larger operand is the first of two that the program is given."""
    product = product_of(operation.product, nan) if operation.product is not None else None
    is_given = computed.isdisjoint(operation.instruction.operand_names)
    return product is not None and is_given and prod(product.rows) > prod(product.columns)


def _rows(operation: XlaOperation) -> int | None:
    """Rows of a product, which are fewer than its columns; None for others."""
    if operation.product is not None:
        product = product_of(operation.product, nan)
        if product is None or prod(product.batch) > 1:
            return None
        return min(prod(product.rows), prod(product.columns))
    # XLA multiplies a single row on the vector unit.
    leaf = operation.path.rstrip(":").rpartition("/")[2]
    results = operation.instruction.results
    is_product = leaf == "dot_general" and operation.inside >= {"multiply", "reduce"}
    is_row = len(results) == 1 and max(results[0].dims, default=0) == results[0].elements > 1
    return 1 if is_product and is_row else None
