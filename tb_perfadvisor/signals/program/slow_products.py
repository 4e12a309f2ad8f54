"""Products and convolutions that XLA computes on the CPU without a fast library.

XLA has fast code for products of floating-point matrices, and for convolutions in which each result
sums up all channels. For others it makes plain loops: for products of integers, and for
convolutions in groups, of which one of eight channels reached 0.1 GFLOP/s on a core that multiplies
matrices at 40.
"""

from __future__ import annotations

from typing import NamedTuple

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import PRODUCTS, Running, mean_ns, running_programs
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.product_time import product_flop
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.hlo_text import Instruction, parse_instruction

_FLOP_PER_NS = 4.0
"""What simple loops over arrays reach on one core, with vector instructions."""
_PRODUCT_FLOP_PER_NS = 40.0
"""What products of 32-bit matrices reach on one core."""
_BYTES_PER_NS = 4.0
_FIXED_NS = 20_000.0
"""What any call costs."""
_INTEGERS = ("s", "u")


class SlowProduct(NamedTuple):
    """A product, and what it needs."""

    operation: XlaOperation
    needed_ns: float
    """What one execution needs at usual rates, or a product of integers as one of floats."""
    is_of_integers: bool
    is_in_groups: bool
    """Whether it is a convolution that sums up the channels of a group."""
    converted: tuple[XlaOperation, ...]
    """The operations that make integers of its factors."""
    line: str


@memoized
def slow_products(signals: Signals) -> tuple[SlowProduct, ...]:
    """Products of integers, and those that take several times what they need."""
    found = []
    for running in running_programs(signals) if signals.device.is_host_only else ():
        program = running.program
        for row in range(len(program)):
            operation = running.operations.get(program.kernel_of(row))
            product = parse_instruction(program.texts.get(row, ""))
            if program.name_of(row) not in PRODUCTS or operation is None or product is None:
                continue
            # Other work in a fusion takes time, too.
            needed = needed_ns(product) if operation.opcode in PRODUCTS else None
            if needed is None:
                continue
            is_of_integers = all(each.dtype.startswith(_INTEGERS) for each in product.operands[:2])
            converted = _converted(running, row) if is_of_integers else ()
            line = program.lines.get(row, "")
            found.append(
                SlowProduct(
                    *(operation, needed, is_of_integers, is_in_groups(product), converted, line)
                )
            )
    return tuple(found)


def needed_ns(product: Instruction) -> float | None:
    """How long a product takes on one core, in a form that suits it; None if unknown."""
    flop = product_flop(product)
    if flop is None or len(product.operands) < 2:
        return None
    arrays = (*product.operands[:2], *product.results)
    bytes_ns = sum(each.padded_bytes for each in arrays) / _BYTES_PER_NS
    rate = _FLOP_PER_NS if is_in_groups(product) else _PRODUCT_FLOP_PER_NS
    return max(flop / rate, bytes_ns) + _FIXED_NS


def is_in_groups(product: Instruction) -> bool:
    """Whether it is a convolution that sums up the channels of a group only."""
    return max(product.feature_groups, product.batch_groups) > 1


def _converted(running: Running, row: int) -> tuple[XlaOperation, ...]:
    program = running.program
    factors = [of for slot in (0, 1) for of in program.operands(row, slot)]
    return tuple(running.of(of for of in factors if program.name_of(of) == "convert"))


def times_needed(signals: Signals, one: SlowProduct) -> float:
    """How many times what it needs a product takes."""
    return mean_ns(signals, one.operation) / max(one.needed_ns, 1.0)
