"""The optimized program, and what it moves.

Bytes that a fusion moves from and to main memory.

Of an operand that it only slices, and of a result that it updates in place, a fusion moves those
parts. Both may happen in a fusion inside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from math import prod
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace.hlo_text import Instruction, Shape, parse_instruction


class HloInstruction(Struct, frozen=True, dict=True):
    """An instruction of an optimized module."""

    name: str
    line: str
    """As the module has it, from its name on."""
    text: str
    """The same with the shapes of the operands, as profiles show it."""
    parsed: Instruction
    called: str
    """The computation of a fusion, or the body of a loop; empty if none."""
    trips: int | None
    """How often a loop runs; None if unknown or if it is no loop."""
    estimated_cycles: int | None
    """What the compiler notes in the instruction; None if nothing."""
    is_root: bool

    @property
    def opcode(self) -> str:
        """Its HLO opcode."""
        return self.parsed.opcode


PARTIAL_READS = ("slice", "dynamic-slice", "gather")
_IN_PLACE = {"dynamic-update-slice": (1, 1), "scatter": (2, 2)}
"""The operand that these write, and how often it moves: a scatter also reads what it adds to."""
_OFF_CHIP = (0, 5)
"""Memory spaces that are not on the chip: main memory, and the host's. On-chip memory is 1, on v4
also 3."""


class _Member(NamedTuple):
    """An instruction inside a fusion; names are unique in a module."""

    instruction: HloInstruction
    computation: str


class FusedTraffic:
    """Counts the bytes of the fusions of a module."""

    def __init__(self, computations: Mapping[str, Sequence[HloInstruction]]) -> None:
        """Remember the computations of a module by name."""
        self._computations = computations
        self._by_name: dict[str, dict[str, HloInstruction]] = {}

    def size_bytes(self, fusion: HloInstruction) -> int:
        """Bytes with all tiles, without arrays on the chip."""
        total, updates = 0, set[str]()
        for shape, output in zip_longest(fusion.parsed.results, self._outputs(fusion.called)):
            if shape is None:
                continue
            opcode = "" if output is None else output.instruction.opcode
            if output is not None and opcode in _IN_PLACE:
                updates.add(output.instruction.name)
                place, times = _IN_PLACE[opcode]
                parts = output.instruction.parsed.operands[place : place + 1]
                total += times * sum(part.padded_bytes for part in parts) * is_off_chip(shape)
            else:
                total += off_chip_bytes(shape)
        for position, shape in enumerate(fusion.parsed.operands):
            read = self._read_bytes(fusion.called, position, updates) if is_off_chip(shape) else 0
            total += off_chip_bytes(shape) if read is None else min(read, off_chip_bytes(shape))
        return total

    def _outputs(self, computation: str) -> Iterator[_Member | None]:
        """What computes each result of a computation; None for what is passed through."""
        members = self._computations[computation]
        root = next((member for member in members if member.is_root), members[-1])
        names = root.parsed.operand_names if root.opcode == "tuple" else (root.name,)
        for name in names:
            found = self._members(computation).get(self._origin(computation, name))
            if found is not None and found.opcode == "fusion" and len(found.parsed.results) == 1:
                yield next(self._outputs(found.called))
            else:
                yield None if found is None else _Member(found, computation)

    def _read_bytes(self, computation: str, position: int, updates: set[str]) -> int | None:
        """Bytes that a computation reads of a parameter; None if it reads all of it.

        `position` is that of the parameter. `updates` are made in place and read nothing of the
        array that they change.
        """
        text = f" parameter({position})"
        members = self._computations[computation]
        name = next((m.name for m in members if m.opcode == "parameter" and text in m.line), None)
        total, is_read = 0, False
        for member in members:
            if member.opcode in ("bitcast", "tuple"):
                continue
            names = [self._origin(computation, of) for of in member.parsed.operand_names]
            places = [place for place, of in enumerate(names) if of == name]
            if not places:
                continue
            is_read = True
            if member.opcode == "fusion":
                parts = [self._read_bytes(member.called, place, updates) for place in places]
                if any(part is None for part in parts):
                    return None
                total += sum(part for part in parts if part is not None)
            elif places != [0]:
                return None
            elif member.opcode in PARTIAL_READS:
                total += sum(shape.padded_bytes for shape in member.parsed.results)
            elif member.name not in updates:
                return None
        return total if is_read else None

    def _origin(self, computation: str, name: str) -> str:
        """The array that bitcasts only rename."""
        by_name = self._members(computation)
        while name in by_name and by_name[name].opcode == "bitcast":
            name = by_name[name].parsed.operand_names[0]
        return name

    def _members(self, computation: str) -> dict[str, HloInstruction]:
        if computation not in self._by_name:
            members = self._computations[computation]
            self._by_name[computation] = {member.name: member for member in members}
        return self._by_name[computation]


def is_off_chip(shape: Shape) -> bool:
    """Whether an array is in main memory, or in the host's."""
    return shape.memory_space in _OFF_CHIP


def off_chip_bytes(shape: Shape) -> int:
    """Bytes of an array with all tiles; 0 if it is on the chip."""
    return shape.padded_bytes if is_off_chip(shape) else 0


# `%fused_computation.1 (param_0: bf16[8,128]) -> bf16[8,128] {`
_COMPUTATION = regex(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = regex(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_CALLED = r"\b(?:calls|body|condition|to_apply)=%?([\w.\-]+)"
_BODY = r"\bbody=%?([\w.\-]+)"
_CALLS = r"\bcalls=%?([\w.\-]+)"
_TRIPS = r'"known_trip_count":\{"n":"(\d{1,18})"\}'
_ESTIMATE = r'"estimated_cycles":"(\d{1,18})"'
_WINDOW = r"window=\{([^{}]*)\}"

_ONLINE_SOFTMAX = 'op_name="online-softmax"'
_ASYNCHRONOUS_COPIES = ("copy-start", "slice-start", "dynamic-slice-start", "async-start")


class HloModule(Struct, frozen=True, dict=True):
    """An optimized module."""

    computations: Mapping[str, tuple[HloInstruction, ...]]
    entry: str

    @cached_property
    def executed(self) -> tuple[tuple[HloInstruction, int], ...]:
        """The instructions of the entry and of the bodies of loops, and how often each runs.

        A loop whose number of trips is unknown counts once.
        """
        return tuple(self._executed(self.entry, 1))

    def _executed(self, computation: str, runs: int) -> Iterator[tuple[HloInstruction, int]]:
        for instruction in self.computations[computation]:
            if instruction.opcode in ("while", "call", "conditional"):
                if instruction.called in self.computations:
                    yield from self._executed(instruction.called, runs * (instruction.trips or 1))
            else:
                yield instruction, runs

    def flop(self, instruction: HloInstruction) -> float:
        """FLOP of the matrix products and convolutions in an instruction."""
        if instruction.called and instruction.opcode in ("fusion", "call"):
            inside = self.computations.get(instruction.called, ())
            return sum(self.flop(member) for member in inside)
        return product_flop(instruction.parsed)

    def hbm_bytes(self, instruction: HloInstruction) -> int:
        """Bytes that an instruction moves from and to main memory, with all tiles."""
        parsed = instruction.parsed
        if instruction.opcode.endswith("-done"):
            return 0
        if instruction.opcode in _ASYNCHRONOUS_COPIES:
            # The result holds source and target in either order; one may be a part of the other.
            sides = parsed.results[:2]
            moved = min((shape.padded_bytes for shape in sides), default=0)
            return moved * sum(is_off_chip(shape) for shape in sides)
        if instruction.opcode == "fusion" and self.computations.get(instruction.called):
            return self._fused_traffic.size_bytes(instruction)
        if instruction.opcode in PARTIAL_READS:
            return 2 * sum(off_chip_bytes(shape) for shape in parsed.results)
        if instruction.opcode == "dynamic-update-slice":
            return 2 * sum(off_chip_bytes(shape) for shape in parsed.operands[1:2])
        if instruction.opcode == "scatter":
            return 3 * sum(off_chip_bytes(shape) for shape in parsed.operands[2:3])
        return sum(off_chip_bytes(shape) for shape in (*parsed.results, *parsed.operands))

    @cached_property
    def _fused_traffic(self) -> FusedTraffic:
        return FusedTraffic(self.computations)


def parse_module(text: str) -> HloModule:
    """Parse the text of an optimized module.

    Raises:
        ValueError: If it has no entry computation.
    """
    computations: dict[str, tuple[HloInstruction, ...]] = {}
    entry = ""
    name, members = "", list[HloInstruction]()
    shapes: dict[str, str] = {}
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            name, members, shapes = header[2], [], {}
            if header[1]:
                entry = name
        elif line == "}" and name:
            computations[name] = tuple(members)
            name = ""
        elif name and (found := _INSTRUCTION.match(line)):
            instruction = _instruction(found[2], found[3], shapes, is_root=bool(found[1]))
            if instruction is not None:
                members.append(instruction)
    if entry not in computations:
        raise ValueError("the text has no entry computation")
    return HloModule(with_trips(computations), entry)


def _instruction(
    name: str, body: str, shapes: dict[str, str], *, is_root: bool
) -> HloInstruction | None:
    line = f"%{name} = {body}"
    parsed = parse_instruction(line)
    if parsed is None:
        return None
    # The result's text ends where the opcode begins.
    shapes[name] = body.partition(f" {parsed.opcode}(")[0]
    text = line
    if not parsed.operands and parsed.operand_names:
        head, opening, rest = line.partition(f" {parsed.opcode}(")
        arguments, closing, attributes = rest.partition(")")
        named = re.sub(
            r"%([\w.\-]+)", lambda m: f"{shapes.get(m[1], '')} {m[0]}".strip(), arguments
        )
        text = f"{head}{opening}{named}{closing}{attributes}"
        parsed = parse_instruction(text) or parsed
    called = re.search(_BODY, body) or re.search(_CALLS, body) or re.search(_CALLED, body)
    trips, estimate = re.search(_TRIPS, body), re.search(_ESTIMATE, body)
    return HloInstruction(
        name=name,
        line=line,
        text=text,
        parsed=parsed,
        called=called[1] if called else "",
        trips=int(trips[1]) if trips else None,
        estimated_cycles=int(estimate[1]) if estimate else None,
        is_root=is_root,
    )


def product_flop(instruction: Instruction) -> float:
    """FLOP of a matrix product or convolution, without padding; 0 for other operations.

    As XLA counts them: positions of the window that lie outside of the input, or in holes that
    dilation makes, cost nothing.
    """
    if not instruction.results or len(instruction.operands) < 2:
        return 0.0
    result, (left, right) = instruction.results[0], instruction.operands[:2]
    if instruction.opcode == "custom-call" and _ONLINE_SOFTMAX in instruction.attributes:
        # XLA's own kernel for the softmax of scores, and their product with the values.
        return 2.0 * result.elements * left.dims[-1] if left.dims else 0.0
    if instruction.opcode == "dot":
        return 2.0 * result.elements * prod(left.dims[dim] for dim in instruction.contracting)
    if instruction.opcode != "convolution" or instruction.labels is None:
        return 0.0
    left_labels, right_labels, result_labels = instruction.labels
    terms = 2.0 * right.dims[right_labels.index("i")]
    terms *= result.dims[result_labels.index("b")] * result.dims[result_labels.index("f")]
    window = _window(instruction.attributes)
    spatial = [label for label in result_labels if label.isdigit()]
    for number, label in enumerate(sorted(spatial, key=int)):
        terms *= _valid_positions(
            left.dims[left_labels.index(label)],
            right.dims[right_labels.index(label)],
            result.dims[result_labels.index(label)],
            {key: values[number] for key, values in window.items() if number < len(values)},
        )
    return terms


def _window(attributes: str) -> dict[str, list[str]]:
    """`size=3x3 pad=1_1x1_1` as `{"size": ["3", "3"], "pad": ["1_1", "1_1"]}`."""
    found = re.search(_WINDOW, attributes)
    pairs = (part.partition("=") for part in found[1].split()) if found else ()
    return {key: value.split("x") for key, _, value in pairs}


def _valid_positions(size: int, kernel: int, outputs: int, window: Mapping[str, str]) -> int:
    """Pairs of an output and a window position that hit an element of the input."""
    stride, dilation = int(window.get("stride", 1)), int(window.get("rhs_dilate", 1))
    hole, low = int(window.get("lhs_dilate", 1)), int(window.get("pad", "0_0").split("_")[0])
    positions = np.arange(outputs) * stride - low
    offsets = np.arange(kernel) * dilation
    place = positions[:, None] + offsets[None, :]
    return int(((place >= 0) & (place <= (size - 1) * hole) & (place % hole == 0)).sum())


# TPU programs rarely note the number of trips. A loop that counts compares an element of the tuple
# that it passes from trip to trip with a constant. The body adds a constant to it, and the tuple
# that enters the loop has its first value.

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
