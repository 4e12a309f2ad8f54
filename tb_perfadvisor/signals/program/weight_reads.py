"""Matrices among a program's arguments that are multiplied by a few rows."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from tb_perfadvisor.signals.program.argument_reads import runs_of
from tb_perfadvisor.signals.program.graph import (
    PRODUCTS,
    Running,
    origin,
    running_programs,
    that_touch,
)
from tb_perfadvisor.signals.program.read_masks import is_normalized, mapped_from
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import achievable_bandwidth
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.program import Program
from tb_perfadvisor.units import NS_PER_S

_LEAST_ELEMENTS = 1 << 18
_NARROW_BITS = 8


class WeightReads(NamedTuple):
    """What reading wide weights takes in the used window."""

    size_bytes: int
    read_ns: float
    saved_ns: float
    """What the memory needs for the bytes that they do not have in 8 bits."""
    operations: tuple[XlaOperation, ...]
    """Those that read them."""


def weight_reads(signals: Signals, most_rows: int) -> WeightReads | None:
    """The weights of more than 8 bits that products read for a few rows; None if there are none.

    Args:
        signals: The worker's facts.
        most_rows: Of the other factor of each product.
    """
    bytes_per_s = achievable_bandwidth(signals)
    if bytes_per_s is None:
        return None
    size = saved = 0
    operations: dict[int, XlaOperation] = {}
    for running in running_programs(signals):
        runs, names = runs_of(signals, running), set[str]()
        for row in _weights(running, most_rows):
            shape = running.program.shape_of(row)
            size += runs * shape.padded_bytes
            saved += runs * (shape.padded_bytes - shape.elements * _NARROW_BITS // 8)
            names.add(running.program.kernel_of(row))
            names |= {running.program.kernel_of(user) for user in running.program.users(row)}
        operations |= {o.op: o for o in that_touch(signals, running, names)} if names else {}
    if not size:
        return None
    per_byte = NS_PER_S / bytes_per_s
    return WeightReads(size, size * per_byte, saved * per_byte, tuple(operations.values()))


def _weights(running: Running, most_rows: int) -> list[int]:
    """The arguments that are the larger factor of a product of few rows.

    Keys and values are none, although attention multiplies them by a few queries.
    """
    program, found = running.program, dict[int, None]()
    products = [row for row in program.rows_of(PRODUCTS) if not _is_attention(program, row)]
    for product in products:
        for slot in (0, 1):
            for factor in program.operands(product, slot):
                row = origin(program, factor)
                shape = program.shape_of(row)
                is_wide = shape.dtype in ("bf16", "f16", "f32")
                large = is_wide and shape.elements >= _LEAST_ELEMENTS and program.argument[row] >= 0
                if (
                    large
                    and not program.is_aliased[row]
                    and _rows(program, product, row) <= most_rows
                ):
                    found[row] = None
    return list(found)


def _is_attention(program: Program, product: int) -> bool:
    """Whether a product's result becomes the exponents of another's factor, or its factor is so."""
    if is_normalized(program, product):
        return True
    factors = (of for factor in program.operands(product) for of in mapped_from(program, factor))
    return any(program.name_of(of) == "exponential" for of in factors)


def _rows(program: Program, product: int, weights: int) -> float:
    """How often each weight is multiplied."""
    result, dims = program.shape_of(product).elements, program.shape_of(weights).dims
    columns = [dim for dim in dims if dim in program.shape_of(product).dims]
    return result / max(prod(columns), 1)
