"""How often a TPU multiplies a product, and how long one pass takes.

The matrix unit multiplies bfloat16 numbers. By default, XLA rounds 32-bit factors to them.
`precision=high` splits each factor into two such numbers, which takes three products, and
`highest` into three, which takes six (source: JAX documentation, "jax.lax.Precision").
"""

from __future__ import annotations

import re
from collections import Counter
from math import nan, prod
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.fitting_sizes import costs_of
from tb_perfadvisor.signals.tpu.memory_time import memory_bandwidth, memory_times
from tb_perfadvisor.signals.tpu.padding import product_of
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, executions, xla_operations
from tb_perfadvisor.trace.hlo_text import Instruction, round_up
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import NS_PER_S

_FEWEST_FEATURES = 8
"""XLA packs convolutions of fewer features differently."""
_PASSES = {"high": 3, "highest": 6}
# What brings the factors and the result of a product into another form takes as many passes.
_OF_PRODUCTS = frozenset(
    {"broadcast", "convert", "convolution", "copy", "dot", "reshape", "transpose"}
)
# Compiled on first use; `re` caches them.
_WINDOW = r"window=\{([^{}]*)\}"
_NUMBER = r"\d{1,9}"


def passes_of(product: Instruction) -> int:
    """How many products of 16-bit numbers a product takes."""
    factors = product.operands[:2]
    # Factors of 16 bits fit already, whatever precision the program asks for.
    if len(factors) < 2 or any(shape.dtype != "f32" for shape in factors):
        return 1
    return max((_PASSES.get(precision, 1) for precision in product.operand_precision), default=1)


class ProductsInPasses(NamedTuple):
    """Executions of products that take several passes; columns of shape (n,)."""

    rows: Int32
    passes: Int64
    """How many products of 16-bit numbers each takes."""
    best_ns: Int64
    """What each takes in one pass at best: no less than its bytes need."""
    expected_ns: Int64
    """The same if other work in the fusion takes as long as now."""
    worst_ns: Int64
    """Halfway from that to what it takes now."""


def products_in_passes(signals: Signals) -> ProductsInPasses:
    """Executions of products that take several passes."""
    passes = np.ones(len(signals.trace.hlo.name), dtype=np.int64)
    one_pass_ns = np.full(passes.size, np.nan)
    operations = []
    for operation in xla_operations(signals):
        if operation.product is not None and passes_of(operation.product) > 1:
            passes[operation.op] = passes_of(operation.product)
            operations.append(operation)
            time_ns = product_time_ns(signals, operation)
            if time_ns is not None and not operation.inside <= _OF_PRODUCTS:
                one_pass_ns[operation.op] = time_ns
    rows = executions(signals, operations)
    op = signals.trace.operations(rows)
    now_ns = signals.trace.events.duration_ns[rows]
    memory_ns = np.nan_to_num(memory_times(signals)[op])
    best_ns = np.minimum(np.maximum(now_ns / passes[op], memory_ns), now_ns).astype(np.int64)
    # What is unknown belongs to the product.
    kept_ns = np.nan_to_num(now_ns - (passes[op] - 1) * one_pass_ns[op])
    expected_ns = np.maximum(best_ns, kept_ns.astype(np.int64))
    worst_ns = (expected_ns + now_ns) // 2
    return ProductsInPasses(rows, passes[op], best_ns, expected_ns, worst_ns)


def product_flop(product: Instruction) -> float | None:
    """FLOP of a matrix product or convolution in one pass; None if the text does not tell.

    Dimensions of the window that only separate groups or batches are not counted.
    """
    if not product.results or len(product.operands) < 2:
        return None
    left, right = product.operands[:2]
    elements = product.results[0].elements
    if product.opcode == "dot":
        if any(dim >= len(left.dims) for dim in product.contracting):
            return None
        return 2.0 * elements * prod(left.dims[dim] for dim in product.contracting)
    if product.labels is None:
        return None
    place = product.labels[1].find("o")
    outputs = right.dims[place] if 0 <= place < len(right.dims) else 0
    if not outputs:
        return None
    groups, _ = separated_by_window(product)
    return 2.0 * elements * (right.elements // outputs) / groups


def separated_by_window(product: Instruction) -> tuple[int, int]:
    """The number of groups or batches that a convolution keeps apart by its window; 1 if none.

    XLA makes a spatial dimension of them. Its window has their number, but the input is dilated so
    much that the window meets one of them at a time: `size=8 stride=7 lhs_dilate=8`. An input of
    size one meets one element of the window at a time, too. The second number is that of the other
    dimensions of the window.
    """
    sizes, strides, dilations = (
        _window(product, name) for name in ("size", "stride", "lhs_dilate")
    )
    labels, input_dims = product.labels, product.operands[0].dims
    places = [labels[0].find(str(number)) if labels else -1 for number in range(len(sizes))]
    is_one = [0 <= place < len(input_dims) and input_dims[place] == 1 for place in places]
    separates = [
        size > 1 and (is_single or (size == dilation and stride == size - 1))
        for size, stride, dilation, is_single in zip(sizes, strides, dilations, is_one, strict=True)
    ]
    groups = prod(size for size, is_group in zip(sizes, separates, strict=True) if is_group)
    return groups, separates.count(False)


def _window(product: Instruction, name: str) -> list[int]:
    """A property of each dimension of a convolution's window: `size=3x3x8`."""
    found = re.search(_WINDOW, product.attributes)
    parts = dict(part.partition("=")[::2] for part in found[1].split()) if found else {}
    count = len(re.findall(_NUMBER, parts.get("size", "")))
    values = [int(value) for value in re.findall(_NUMBER, parts.get(name, ""))]
    return values if len(values) == count else [1] * count


def product_time_ns(
    signals: Signals, operation: XlaOperation, *, at_peak: bool = False
) -> float | None:
    """The time of the product in an operation; None if it is unknown.

    That is what the model of shapes expects of the compiler, if it knows the device. Else it is the
    time of the FLOP at the rate that products reach. With `at_peak`, it is the time at the peak of
    the data sheet.
    """
    if operation.product is None:
        return None
    flop = product_flop(operation.product)
    if flop is None:
        return None
    if not at_peak and (modeled_ns := _modeled_ns(signals, operation.product)) is not None:
        return modeled_ns
    return flop_time_ns(signals, flop, at_peak=at_peak)


def least_product_ns(signals: Signals, product: Instruction, *, together: int = 1) -> float | None:
    """The time of the FLOP of a product in all of its passes at usual rates; None if unknown.

    A convolution fills columns of the matrix unit with its features, and leaves the rest empty;
    several `together` fill it with the features of all.
    """
    flop = product_flop(product)
    time_ns = flop_time_ns(signals, flop * passes_of(product)) if flop is not None else None
    costs = costs_of(signals)
    if time_ns is None or costs is None or product.labels is None:
        return time_ns
    features = together * product.operands[1].dims[product.labels[1].find("o")]
    is_few = features < _FEWEST_FEATURES
    return time_ns if is_few else time_ns * round_up(features, costs.array_side) / features


def _modeled_ns(signals: Signals, instruction: Instruction) -> float | None:
    """The time of a product by the model of shapes; None for convolutions and unknown devices."""
    costs, product = costs_of(signals), product_of(instruction, np.nan)
    if costs is None or product is None or not costs.knows(product.kind):
        return None
    return costs.cycles(product.kind, product.sizes) / costs.cycles_per_s * NS_PER_S


def flop_time_ns(signals: Signals, flop: float, *, at_peak: bool = False) -> float | None:
    """The time of some FLOP on the matrix unit; None if its rate is unknown.

    With `at_peak`, the rate is the peak of the data sheet, else what products reach in practice.
    """
    facts = signals.device_facts
    peaks = facts.peaks if facts is not None else None
    rate = peaks.flop_per_s("bf16") if peaks is not None else None
    if peaks is None or rate is None:
        return None
    return flop / (rate * (1.0 if at_peak else peaks.achievable)) * NS_PER_S


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
