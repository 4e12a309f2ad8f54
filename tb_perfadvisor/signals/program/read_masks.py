"""Masks and biases of attention that a program reads from memory, an element for each score."""

from __future__ import annotations

from tb_perfadvisor.signals.program.graph import PRODUCTS, SAME_ELEMENTS
from tb_perfadvisor.signals.program.useful_work import MAPS
from tb_perfadvisor.trace.program import Program


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
