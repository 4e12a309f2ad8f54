"""Masks and biases of attention that a program reads from memory, an element for each score."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import (
    PRODUCTS,
    SAME_ELEMENTS,
    FasterOperation,
    Running,
    mean_ns,
    readers,
    running_programs,
)
from tb_perfadvisor.signals.program.useful_work import MAPS
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import achievable_bandwidth
from tb_perfadvisor.trace.hlo_text import Shape
from tb_perfadvisor.trace.program import Program
from tb_perfadvisor.units import NS_PER_S

_LEAST_BYTES = 1 << 20
_SPREADS = (*SAME_ELEMENTS, "broadcast")
_NARROW_BITS = 8


class ReadMask(NamedTuple):
    """An argument with an element for each pair of positions, which attention reads."""

    running: Running
    argument: int
    """Its row in the program."""
    users: tuple[int, ...]
    """The rows that apply it to scores."""

    @property
    def shape(self) -> Shape:
        """Of the argument."""
        return self.running.program.shape_of(self.argument)


@memoized
def read_masks(signals: Signals) -> tuple[ReadMask, ...]:
    """The large arguments that are added to scores of attention, or choose among them."""
    found = []
    for running in running_programs(signals):
        program = running.program
        for row in (program.argument >= 0).nonzero()[0].tolist():
            shape = program.shape_of(row)
            if shape.padded_bytes < _LEAST_BYTES or sum(dim > 1 for dim in shape.dims) < 2:
                continue
            users = tuple(u for u in readers(program, row, _SPREADS) if _is_mask(program, u, row))
            if users:
                found.append(ReadMask(running, row, users))
    return tuple(found)


def _is_mask(program: Program, user: int, argument: int) -> bool:
    """Whether a value applies an argument to scores: a product that becomes another's factor."""
    if program.name_of(user) not in ("add", "select", "multiply"):
        return False
    shape, sizes = program.shape_of(user), program.shape_of(argument).dims
    if not {dim for dim in sizes if dim > 1} <= set(shape.dims):
        return False
    scores = [of for of in mapped_from(program, user) if program.name_of(of) in PRODUCTS]
    has_scores = any(program.shape_of(of).elements == shape.elements for of in scores)
    return has_scores and is_normalized(program, user)


def mapped_from(program: Program, row: int) -> list[int]:
    """What a value is mapped from, element by element."""
    pending, seen = [row], {row}
    while pending:
        for of in program.operands(pending.pop()):
            if of not in seen:
                seen.add(of)
                if program.name_of(of) in (*SAME_ELEMENTS, *MAPS):
                    pending.append(of)
    return list(seen)


def is_normalized(program: Program, row: int) -> bool:
    """Whether exponentials of a value are the factor of a product, as in attention.

    Of few rows, XLA makes products of elements that are summed up.
    """
    pending, seen, exponential = [row], {row}, False
    size = program.shape_of(row).elements
    while pending:
        place = pending.pop()
        for user in program.users(place):
            if program.name_of(user) in PRODUCTS and exponential:
                return True
            is_map = program.name_of(user) in (*SAME_ELEMENTS, *MAPS)
            if exponential and program.shape_of(user).elements > size and _is_summed(program, user):
                return True
            if user not in seen and is_map and program.shape_of(user).elements == size:
                exponential |= program.name_of(user) == "exponential"
                seen.add(user)
                pending.append(user)
    return False


def _is_summed(program: Program, row: int) -> bool:
    """Whether a value is multiplied element by element, and then summed up."""
    pending, seen, multiplied = [row], {row}, False
    while pending:
        place = pending.pop()
        multiplied |= program.name_of(place) == "multiply"
        for user in program.users(place):
            if program.name_of(user) == "reduce" and multiplied:
                return True
            if user not in seen and program.name_of(user) in (*SAME_ELEMENTS, "multiply"):
                seen.add(user)
                pending.append(user)
    return False


def without_masks(signals: Signals) -> list[FasterOperation]:
    """The operations that read or move such arguments, if they computed them from positions.

    At best, nothing is read. Expected is that an element takes a byte, or that half of the bytes
    go; low is half of that. Numbers that are added to the scores of several samples may be computed
    once and written, so that at worst only the copies before that are saved.
    """
    bytes_per_s = achievable_bandwidth(signals)
    if bytes_per_s is None:
        return []
    saved: dict[int, tuple[float, float, float]] = {}
    for mask in read_masks(signals):
        program, running = mask.running.program, mask.running
        read_ns = mask.shape.padded_bytes / bytes_per_s * NS_PER_S
        share = max(1 - _NARROW_BITS / mask.shape.element_bits, 0.5)
        moves = {program.kernel_of(row) for row in _moves(program, mask)}
        for operation in running.of((*_moves(program, mask), *mask.users)):
            now = mean_ns(signals, operation)
            alone = operation.name in moves and operation.product is None
            part = now if alone else min(read_ns, now)
            low = share * part / 2
            if _is_shared_bias(mask):
                low = max(part - read_ns, 0.0) if alone else 0.0
            before = saved.get(operation.op, (0.0, 0.0, 0.0))
            saved[operation.op] = before[0] + part, before[1] + share * part, before[2] + low
    by_op = {o.op: o for mask in read_masks(signals) for o in mask.running.operations.values()}
    return [
        FasterOperation(
            by_op[op], now - min(expected, now), now - min(best, now), now - min(low, now)
        )
        for op, (best, expected, low) in saved.items()
        for now in (mean_ns(signals, by_op[op]),)
    ]


def _is_shared_bias(mask: ReadMask) -> bool:
    """Whether an array of numbers is added to larger scores."""
    program, elements = mask.running.program, mask.shape.elements
    return mask.shape.element_bits > _NARROW_BITS and any(
        program.name_of(user) == "add" and program.shape_of(user).elements > elements
        for user in mask.users
    )


def _moves(program: Program, mask: ReadMask) -> list[int]:
    """What copies, converts or spreads a mask in an operation of its own."""
    pending, seen = [mask.argument], {mask.argument}
    least = prod(mask.shape.dims)
    while pending:
        for user in program.users(pending.pop()):
            is_move = program.name_of(user) in _SPREADS
            if user not in seen and is_move and program.shape_of(user).elements >= least:
                seen.add(user)
                pending.append(user)
    seen.discard(mask.argument)
    applied = {program.kernel_of(row) for row in mask.users}
    return [row for row in seen if program.kernel_of(row) not in applied]
