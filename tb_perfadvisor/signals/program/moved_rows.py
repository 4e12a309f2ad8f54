"""Rows that a program moves: gathers, one-hot products, sorts.

Gathers and scatters in a program: how many slices of which table they move.

The places of the slices are known only at run time, so each takes some cycles of its own, however
few bytes it has. Other forms that give the same result do not have to move slice by slice.

Products with matrices of zeros and a few ones that a program makes of indices.

Comparing indices with positions for equality makes a one-hot matrix. Whatever it is multiplied by,
the result has zeros in the same places, so that a product with it adds up a few rows of the other
factor: a look-up by index does the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import prod

from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import (
    PRODUCTS,
    SAME_ELEMENTS,
    Running,
    mean_ns,
    origin,
    readers,
    running_programs,
)
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.fitting_sizes import costs_of
from tb_perfadvisor.signals.tpu.product_time import flop_time_ns, product_flop
from tb_perfadvisor.signals.tpu.xla_operations import (
    XlaOperation,
    operands_of,
    reader_count,
    readers_of,
)
from tb_perfadvisor.trace.hlo_text import Shape, parse_instruction
from tb_perfadvisor.trace.program import Program
from tb_perfadvisor.units import NS_PER_S

_READ_CYCLES = {True: 2, False: 5}
"""Of a row that a gather reads, at best and usually: from memory on the chip, and from main memory.
XLA's compiler (libtpu 0.0.52) schedules 2.2 to 16 cycles for v5e, v5p and v6e, and 8.7 to 69 for a
row that a scatter adds."""
_LEAST_MATRIX = 1 << 16
"""Elements of a slice that is a matrix, not a row."""
_MOST_ROWS = 240
"""TPUs multiply this many rows while they read a weight."""


_ROWS_PER_SUM = 4
"""Where fewer rows are added to each row of a table, padding them to equal numbers costs more."""


class SliceMoves(Struct, frozen=True):
    """What a gather reads, or a scatter adds."""

    running: Running
    row: int
    """Its row in the program."""
    is_scatter: bool
    slices: int
    """Slices that are moved."""
    elements: int
    """Of each slice."""
    table_slices: int
    """Slices of the table."""

    @property
    def one_hot_flop(self) -> float:
        """FLOP of a product with a one-hot matrix that does the same."""
        return 2.0 * self.slices * self.elements * self.table_slices

    @property
    def adds_up_many(self) -> bool:
        """Whether several rows are added to each of the table: they can be read and summed up."""
        return self.is_scatter and self.slices >= _ROWS_PER_SUM * self.table_slices

    @property
    def copies_weights(self) -> bool:
        """Whether matrices of weights are gathered, as often as the table has them, or more.

        Multiplying all rows by all matrices reads the table once, which is fewer bytes.
        """
        program = self.running.program
        tables = program.operands(self.row, 0)
        return (
            not self.is_scatter
            and self.elements >= _LEAST_MATRIX
            and self.table_slices <= self.slices <= _MOST_ROWS
            and any(program.argument[origin(program, of)] >= 0 for of in tables)
        )


@memoized
def slice_moves(signals: Signals) -> dict[int, SliceMoves]:
    """By row of the `HloTable`: the gather or scatter of each operation, of several the scatter."""
    found: dict[int, SliceMoves] = {}
    for running in running_programs(signals):
        for name in ("gather", "scatter"):
            for row in running.program.rows_of((name,)):
                moves = _moves(running, row, is_scatter=name == "scatter")
                if moves is not None:
                    found |= {operation.op: moves for operation in running.of([row])}
    return found


def _moves(running: Running, row: int, *, is_scatter: bool) -> SliceMoves | None:
    program = running.program
    operands = [program.operands(row, slot) for slot in (0, 1, 2)]
    if any(len(of) != 1 for of in operands[: 3 if is_scatter else 2]):
        return None
    moved = program.shape_of(operands[2][0] if is_scatter else row)
    table, places = (program.shape_of(of[0]) for of in operands[:2])
    elements = _slice_elements(table, places, moved)
    if not elements:
        return None
    count, table_slices = moved.elements // elements, table.elements // elements
    return SliceMoves(running, row, is_scatter, count, elements, table_slices)


_PLACES = (
    *(*SAME_ELEMENTS, "broadcast", "slice", "concatenate", "add", "subtract", "multiply", "clamp"),
    *("floor", "ceil", "select", "compare", "and", "or", "not", "minimum", "maximum", "pad"),
    *("shift-left", "shift-right-logical", "shift-right-arithmetic", "custom-call", "negate"),
    *("round-nearest-even", "divide", "sign", "convert", "xor"),
)
"""What computes one place of few numbers."""


def gathers_windows(program: Program, gather: int) -> int:
    """How many rows of neighbors a gather moves one by one; 0 if places may be anywhere.

    Places that are computed from fewer numbers, such as a center and offsets, are next to one
    another: a row of them can be read at once, or interpolated by two products.
    """
    moved = program.shape_of(gather)
    side = next((size for size in reversed(moved.dims) if size > 1), 1)
    if gathered_elements(program, gather) != 1 or side == moved.elements:
        return 0
    pending, seen, numbers = program.operands(gather, 1), set[int](), 0
    while pending:
        row = pending.pop()
        if row in seen:
            continue
        seen.add(row)
        if program.name_of(row) in _PLACES and len(seen) <= _MOST_PLACES:
            pending += program.operands(row)
        elif program.largest_argument[row] > 1:
            numbers += program.shape_of(row).elements
    return moved.elements // side if 0 < numbers * side <= 2 * moved.elements else 0


def gathered_elements(program: Program, gather: int) -> int:
    """Elements of each slice that a gather reads; 0 if unknown."""
    operands = [program.operands(gather, slot) for slot in (0, 1)]
    if any(len(of) != 1 for of in operands):
        return 0
    table, places = (program.shape_of(of[0]) for of in operands)
    return _slice_elements(table, places, program.shape_of(gather))


def _slice_elements(table: Shape, places: Shape, moved: Shape) -> int:
    """Elements of each slice of a table that is moved at some places; 0 if unknown."""
    for numbers in _numbers_per_place(table, places):
        count = places.elements // numbers
        elements = moved.elements // count if count else 0
        if elements * count == moved.elements and _is_slice(table, elements):
            return elements
    return 0


def _numbers_per_place(table: Shape, places: Shape) -> list[int]:
    """How many indices may say where one slice is."""
    last = places.dims[-1] if len(places.dims) > 1 else 1
    return [1, last] if 1 < last <= len(table.dims) else [1]


def _is_slice(table: Shape, elements: int) -> bool:
    """Whether some dimensions of a table together have so many elements."""
    return elements > 0 and any(
        prod(dims) == elements
        for count in range(len(table.dims) + 1)
        for dims in combinations(table.dims, count)
    )


def other_form_ns(signals: Signals, moves: SliceMoves, *, at_peak: bool) -> float | None:
    """The time of another form with the same result; None if it is unknown.

    That is a product with a one-hot matrix, or for a scatter that adds up many rows, a gather.
    """
    costs = costs_of(signals)
    side = costs.array_side if costs is not None else 1
    # Of narrow slices, each square of the matrix unit is mostly empty.
    filled = min(moves.elements / side, moves.slices / side, 1.0)
    times = [flop_time_ns(signals, moves.one_hot_flop / filled, at_peak=at_peak)]
    if moves.adds_up_many:
        times.append(reading_ns(signals, moves, at_best=at_peak))
    return min((ns for ns in times if ns is not None), default=None)


def reading_ns(signals: Signals, moves: SliceMoves, *, at_best: bool) -> float | None:
    """How long a gather of so many slices takes on any core; None if the clock is unknown."""
    costs = costs_of(signals)
    cycles = moves.slices * _READ_CYCLES[at_best]
    return None if costs is None else cycles / costs.cycles_per_s * NS_PER_S


def copies_for(signals: Signals, operation: XlaOperation) -> list[XlaOperation]:
    """The operations that bring a table to another layout for a gather alone."""
    names = operation.instruction.operand_names
    return [
        other
        for other in operands_of(signals, operation)
        if other.opcode == "copy"
        and other.name in names
        and reader_count(signals, operation, other.name) == 1
    ]


def readers_of_weights(
    signals: Signals, operations: Sequence[XlaOperation]
) -> Iterator[tuple[XlaOperation, float, float]]:
    """Products by gathered matrices, with what each saves and keeps if it reads the table."""
    for operation in operations:
        moves = slice_moves(signals).get(operation.op)
        if moves is None or not moves.copies_weights:
            continue
        # A table that was brought to the chip for the gather is read from there.
        is_on_chip = any(of.memory_space for of in operation.instruction.operands if of.dims)
        for reader, shape in readers_of(signals, [operation]):
            less = shape.padded_bytes * (1 - moves.table_slices / moves.slices)
            whole = sum(of.padded_bytes for of in reader.instruction.operands)
            now = mean_ns(signals, reader)
            saved = now * less / max(whole, 1)
            yield reader, saved, 0.0 if is_on_chip else now - saved


_KEEPS_ZEROS = ("multiply", "and")
_SPREADS = (*SAME_ELEMENTS, "broadcast")
_LEAST_ELEMENTS = 1 << 16
_SMALLEST_TABLE = 256
"""Rows: the matrix unit multiplies by a smaller table at once, so a gather is no faster."""
_MOST_CHOICES = 8
"""Ones that are added up for each row, such as the experts of a token."""
_MOST_STEPS = 40
_MOST_PLACES = 2000


def one_hot_products(program: Program) -> frozenset[int]:
    """The products with a one-hot matrix, which look rows of the other factor up."""
    return frozenset(
        row
        for row in program.rows_of(PRODUCTS)
        if _contracted(program, row) > _SMALLEST_TABLE
        and any(is_one_hot_matrix(program, of) for of in program.operands(row))
    )


def is_one_hot_matrix(program: Program, row: int) -> bool:
    """Whether a value is a large matrix of zeros, with a few ones at indices in each row."""
    return program.shape_of(row).elements >= _LEAST_ELEMENTS and share_of_ones(program, row) < 1


def _contracted(program: Program, product: int) -> float:
    """How many terms each element of a product sums up."""
    parsed = parse_instruction(program.texts.get(product, ""))
    flop = product_flop(parsed) if parsed is not None else None
    return (flop or 0.0) / 2 / max(program.shape_of(product).elements, 1)


def share_of_ones(program: Program, row: int, depth: int = 0) -> float:
    """The share of a value's elements that are not zero because indices equal positions.

    It is 1 if nothing says that any are zero.
    """
    place = origin(program, row, _SPREADS)
    if depth > _MOST_STEPS:
        return 1.0
    name = program.name_of(place)
    if name == "compare":
        return _share_of_equals(program, place)
    if name == "select":
        # Chosen where indices equal positions, and zero elsewhere.
        others = [origin(program, of, _SPREADS) for of in program.operands(place, 2)]
        is_zero = bool(others) and all(program.name_of(of) == "constant" for of in others)
        chosen = program.operands(place, 0) if is_zero else []
        return min((share_of_ones(program, of, depth + 1) for of in chosen), default=1.0)
    if name == "reduce":
        # The sum over the few experts of a token is zero wherever all of them are.
        summed = program.operands(place, 0)
        terms = sum(program.shape_of(of).elements for of in summed) / max(
            program.shape_of(place).elements, 1
        )
        if len(summed) != 1 or terms > _MOST_CHOICES:
            return 1.0
        return min(terms * share_of_ones(program, summed[0], depth + 1), 1.0)
    if name in _KEEPS_ZEROS:
        factors = (of for slot in (0, 1) for of in program.operands(place, slot))
        return min((share_of_ones(program, of, depth + 1) for of in factors), default=1.0)
    return 1.0


def _share_of_equals(program: Program, compare: int) -> float:
    """The share of elements for which an index is equal to a position; 1 if it compares others."""
    if not _compares_with_positions(program, compare):
        return 1.0
    sides = (of for slot in (0, 1) for of in program.operands(compare, slot))
    indices = [origin(program, of, _SPREADS) for of in sides]
    count = sum(program.shape_of(of).elements for of in indices if program.name_of(of) != "iota")
    return min(count / max(program.shape_of(compare).elements, 1), 1.0)


def _compares_with_positions(program: Program, compare: int) -> bool:
    """Whether a comparison is of indices, which the data determine, with positions."""
    if "direction=EQ" not in program.texts.get(compare, ""):
        return False
    sides = [
        program.name_of(origin(program, of, _SPREADS))
        for slot in (0, 1)
        for of in program.operands(compare, slot)
    ]
    # Two iotas make an identity matrix.
    return len(sides) == 2 and sides.count("iota") == 1 and "constant" not in sides


_TAKES = ("slice", "dynamic-slice")
_MOST_USED = 0.25
"""Selecting a quarter of the elements costs about as much as sorting all."""
_LEAST_SORTED = 1 << 12
_SHUFFLE = "_shuffle"
"""JAX sorts random numbers to shuffle; `random.choice` without replacement does, too."""

_SELECTION = "top_k"
"""The program selects already, and XLA sorts because that is faster for so many."""


class PartlyUsedSort(Struct, frozen=True):
    """A sort of which a small part is used."""

    operation: XlaOperation
    sorted: int
    """Elements."""
    used: int
    is_random: bool
    """Whether the keys are random numbers, so that the part is a sample."""
    beside: tuple[XlaOperation, ...]
    """What else shuffles the elements, such as drawing the keys."""


@memoized
def partly_used_sorts(signals: Signals) -> tuple[PartlyUsedSort, ...]:
    """The sorts of the used window of which a small part is used."""
    return tuple(
        found
        for running in running_programs(signals)
        for row in running.program.rows_of(("sort",))
        for found in _partly_used(running, row)
    )


def _partly_used(running: Running, row: int) -> list[PartlyUsedSort]:
    program = running.program
    size, used = program.shape_of(row).elements, _used(program, row)
    operations = running.of([row])
    if used is None or not operations or size < _LEAST_SORTED or used > _MOST_USED * size:
        return []
    path = program.paths.get(row, "") or operations[0].path
    # XLA itself adds sorts without a name of the framework.
    if not path or _SELECTION in path:
        return []
    prefix, is_random, _ = path.partition(_SHUFFLE)
    beside = tuple(
        o
        for o in running.operations.values()
        if is_random and o.path.startswith(f"{prefix}{_SHUFFLE}") and o.op != operations[0].op
    )
    return [PartlyUsedSort(operations[0], size, used, bool(is_random), beside)]


def _used(program: Program, row: int) -> int | None:
    """How many of the sorted elements are read at all; None if all may be."""
    users = list(readers(program, row, SAME_ELEMENTS))
    if program.is_result[row] or not users:
        return None
    if any(program.name_of(user) not in _TAKES for user in users):
        return None
    return sum(program.shape_of(user).elements for user in users)
