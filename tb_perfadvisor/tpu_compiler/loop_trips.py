"""How often the loops of an optimized module run, by what they count.

TPU programs rarely note the number of trips. A loop that counts compares an element of the tuple
that it passes from trip to trip with a constant. The body adds a constant to it, and the tuple that
enters the loop has its first value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from tb_perfadvisor.tpu_compiler.hlo_instruction import HloInstruction

_CONDITION = r"\bcondition=%?([\w.\-]+)"
_INTEGER = r"= [su]\d+\[\]\S* constant\((-?\d{1,18})\)"
_INDEX = r"\bindex=(\d{1,9})"
_NUMBER = r" parameter\((\d{1,9})\)"
_DIRECTION = r"\bdirection=(\w\w)"
_SWAPPED = {"GT": "LT", "GE": "LE", "LT": "GT", "LE": "GE", "NE": "NE"}
_SAME = ("copy", "bitcast", "convert", "reshape")

Computations = Mapping[str, Sequence[HloInstruction]]


class _Element(NamedTuple):
    """An element of the tuple that a loop passes from trip to trip."""

    number: int


_Value = _Element | int | None
"""An element, a constant, or something else."""


def with_trips(computations: Computations) -> dict[str, tuple[HloInstruction, ...]]:
    """The computations of a module, with the trips of loops that count."""
    return {
        name: tuple(
            replace(member, trips=_trips(member, members, computations))
            if member.opcode == "while" and member.trips is None
            else member
            for member in members
        )
        for name, members in computations.items()
    }


def _trips(
    loop: HloInstruction, siblings: Sequence[HloInstruction], computations: Computations
) -> int | None:
    """How often a loop runs; None if unknown, and at most as often if it may also end earlier."""
    condition = re.search(_CONDITION, loop.line)
    compared = _comparisons(computations.get(condition[1], ()) if condition else (), computations)
    for counter, direction, limit in compared:
        entering = _tuple_element(siblings, loop.parsed.operand_names, counter.number)
        step = _step(computations.get(loop.called, ()), counter)
        # What enters an inner loop may be a constant that the outer one passes on.
        start = entering if isinstance(entering, int) else 0
        distance = limit - start if direction in ("LT", "LE", "NE") else start - limit
        distance += direction in ("LE", "GE")
        pace = step if direction in ("LT", "LE") else -step
        pace = abs(step) if direction == "NE" else pace
        if pace > 0 and distance >= 0 and (direction in ("LT", "LE") or entering is not None):
            return -(-distance // pace)
    return None


def _comparisons(
    members: Sequence[HloInstruction], computations: Computations, given: Sequence[_Value] = ()
) -> Iterator[tuple[_Element, str, int]]:
    """The comparisons of an element with a constant: `(element, direction, constant)`.

    `members` are the instructions of a condition, or of a fusion inside it, and `given` is what a
    fusion gets.
    """
    values: dict[str, _Value] = {}
    for member in members:
        names = member.parsed.operand_names
        values[member.name] = _value(member, values, given)
        if member.opcode == "fusion":
            inside = computations.get(member.called, ())
            yield from _comparisons(inside, computations, [values.get(name) for name in names])
        elif member.opcode == "compare" and len(names) == 2:
            left, right = (values.get(name) for name in names)
            found = re.search(_DIRECTION, member.line)
            direction = found[1] if found else ""
            if isinstance(left, int) and isinstance(right, _Element):
                left, right, direction = right, left, _SWAPPED.get(direction, "")
            if isinstance(left, _Element) and isinstance(right, int) and direction in _SWAPPED:
                yield left, direction, right


def _value(member: HloInstruction, values: Mapping[str, _Value], given: Sequence[_Value]) -> _Value:
    if constant := re.search(_INTEGER, member.line):
        return int(constant[1])
    if member.opcode == "get-tuple-element" and (index := re.search(_INDEX, member.line)):
        return _Element(int(index[1]))
    if member.opcode == "parameter" and (number := re.search(_NUMBER, member.line)):
        return given[int(number[1])] if int(number[1]) < len(given) else None
    names = member.parsed.operand_names
    return values.get(names[0]) if member.opcode in _SAME and names else None


def _tuple_element(
    members: Sequence[HloInstruction], tuple_names: Sequence[str], index: int
) -> _Value:
    """What an element of a tuple is."""
    values: dict[str, _Value] = {}
    for member in members:
        values[member.name] = _value(member, values, ())
        if member.name in tuple_names[:1] and index < len(member.parsed.operand_names):
            return values.get(member.parsed.operand_names[index])
    return None


def _step(body: Sequence[HloInstruction], counter: _Element) -> int:
    """What a trip adds to an element; 1 if unknown."""
    values: dict[str, _Value] = {}
    added: dict[str, int] = {}
    for member in body:
        values[member.name] = _value(member, values, ())
        names = member.parsed.operand_names
        sides = [values.get(name) for name in names]
        if member.opcode in ("add", "subtract") and len(sides) == 2 and counter in sides:
            numbers = [side for side in sides if isinstance(side, int)]
            if numbers:
                added[member.name] = numbers[0] if member.opcode == "add" else -numbers[0]
        elif member.opcode in _SAME and names[:1] and names[0] in added:
            added[member.name] = added[names[0]]
        if member.is_root and counter.number < len(names):
            return added.get(names[counter.number], 1)
    return 1
