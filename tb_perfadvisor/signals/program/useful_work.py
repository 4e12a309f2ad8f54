"""Products whose results are partly thrown away, and products in the costlier order.

The graph of values shows what becomes of a product's result. If all that follows only moves or maps
elements until slices take some of them, the others were computed for nothing, and so were those
that are multiplied by zero. The gradient of a slice is an array that zeros fill up, and products
with it multiply these zeros. A gather is a slice if its indices depend on no data, or if it takes
whole rows. Else to gather first can take longer than what it saves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import (
    PRODUCTS,
    SAME_ELEMENTS,
    Running,
    origin,
    readers,
    running_programs,
    takes_known_part,
)
from tb_perfadvisor.signals.program.loops import reached
from tb_perfadvisor.signals.program.moved_rows import (
    gathered_elements,
    one_hot_products,
    share_of_ones,
)
from tb_perfadvisor.signals.program.positions import kept_share, masks_rows
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import stored_bytes
from tb_perfadvisor.signals.tpu.product_time import product_flop
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, readers_of
from tb_perfadvisor.trace.hlo_text import parse_instruction
from tb_perfadvisor.trace.program import Program

MAPS = (
    *("abs", "add", "and", "bitcast-convert", "clamp", "compare", "cosine", "divide", "erf"),
    *("exponential", "exponential-minus-one", "floor", "log", "log-plus-one", "logistic"),
    *("maximum", "minimum", "multiply", "negate", "not", "or", "power", "remainder", "rsqrt"),
    *("select", "sign", "sine", "sqrt", "subtract", "tanh", "xor"),
)
"""Each element of the result comes from one element of each operand."""
_FILLING = {"pad": 0, "scatter": 2}
"""Which operand is written among zeros."""
_LEAST_ELEMENTS = 1 << 16
_FAR_BELOW = -1000.0
"""Exponentials of smaller numbers are zero."""
_LEAST_ROW = 128
"""Elements of a row that is gathered: shorter ones take as long."""
_MOST_STEPS = 400
_MOST_SUMMED = 16
_MOST_DEPTH = 16
_JOINS = ("concatenate", "maximum", "pad")
_MOST_USED = 0.75
"""What is used more is not worth a change."""


class PartlyUsed(Struct, frozen=True):
    """A product of which only a part is used."""

    running: Running
    product: int
    """Its row in the program."""
    used: float
    """The share of its result, or of a factor, that matters."""
    by: int
    """The row of what takes the elements that are used, or fills them in."""
    is_masked: bool
    """Whether a mask that depends on positions alone decides which these are."""


@memoized
def partly_used_products(signals: Signals) -> tuple[PartlyUsed, ...]:
    """The products of which a part is for nothing, in the order of the programs."""
    found = []
    for running in running_programs(signals):
        program = running.program
        unneeded, zeros = values_times_zero(program), _Zeros(program)
        looked_up = one_hot_products(program)
        for row in program.rows_of(PRODUCTS):
            if program.shape_of(row).elements < _LEAST_ELEMENTS:
                continue
            used, by = (0.0, row) if row in unneeded else _used_share(zeros, row, {})
            if used > _MOST_USED and row not in looked_up:
                used, by = _filled_share(zeros, row)
            if used <= _MOST_USED:
                found.append(PartlyUsed(running, row, used, by, _is_masked(program, by)))
    return tuple(found)


def _is_masked(program: Program, row: int) -> bool:
    """Whether a mask of positions leaves out a part of a value, or of what it is mapped from."""
    pending, seen = [row], {row}
    while pending and len(seen) < _MOST_STEPS:
        place = pending.pop()
        is_mask = program.shape_of(place).dtype == "pred" and program.shape_of(place).elements > 1
        if is_mask and not program.largest_argument[place]:
            return True
        if program.name_of(place) in (*SAME_ELEMENTS, *MAPS, "broadcast"):
            pending += (of for of in program.operands(place) if of not in seen)
            seen.update(pending)
    return False


def values_times_zero(program: Program) -> frozenset[int]:
    """The values that the results would need if nothing were multiplied by zero."""
    zeros = {row for row, number in program.numbers.items() if not number}
    through = (*SAME_ELEMENTS, "broadcast")
    ends = {
        row
        for row in (program.rows_of(("multiply",)) if zeros else ())
        if any(origin(program, of, through) in zeros for of in program.operands(row))
    }
    if not ends:
        return frozenset()
    before = {row: [] if row in ends else program.operands(row) for row in range(len(program))}
    results = np.flatnonzero(program.is_result).tolist()
    of_ends = reached(sorted(ends), {row: program.operands(row) for row in before})
    return frozenset(of_ends - reached(results, before) - ends)


def _used_share(
    zeros: _Zeros, product: int, known: dict[int, tuple[float, int]]
) -> tuple[float, int]:
    """The share of a product's result that anything uses, and what takes it.

    A product with weights needs those rows of its other factor that are used of its result.

    `product` is its row, and `known` has the answers for other products.
    """
    known[product] = 1.0, -1  # while it is computed: a loop that feeds itself uses all
    known[product] = _taken_share(zeros, product, known)
    return known[product]


def _taken_share(
    zeros: _Zeros, product: int, known: dict[int, tuple[float, int]]
) -> tuple[float, int]:
    program = zeros.program
    size, runs = program.shape_of(product).elements, float(program.runs[product])
    pending, seen, taken, by = [product], {product}, 0.0, -1
    masks = set[frozenset[int]]()
    while pending:
        row = pending.pop()
        if program.is_result[row] or len(seen) > _MOST_STEPS:
            return 1.0, -1
        for user in program.users(row):
            if user in seen:
                continue
            seen.add(user)
            name = program.name_of(user)
            # In a loop, each trip may take another part.
            times = float(program.runs[user]) / runs
            if _takes_part(program, user) and row in program.operands(user, 0):
                # Of a slice, what follows may take a part again: gathers can be split into slices.
                share = _used_share(zeros, user, known)[0] * times
                taken, by = taken + share * program.shape_of(user).elements, user
            elif (filled := _share_times_ones(zeros, user, row)) < 1:
                # Fusions that compute the same again need no other elements.
                mask = frozenset(origin(program, of) for of in program.operands(user) if of != row)
                taken, by = taken + filled * size * times * (mask not in masks), user
                masks.add(mask)
            elif name in (*SAME_ELEMENTS, *MAPS, "broadcast") or _is_of_rows(program, user, row):
                pending.append(user)
            elif name in PRODUCTS and _multiplies_rows(program, user, row):
                share, taker = known.get(user) or _used_share(zeros, user, known)
                if taker < 0 or not _takes_rows(program, taker):
                    return 1.0, -1
                taken, by = taken + share * size * times, taker
            else:
                return 1.0, -1
    return (min(taken / size, 1.0), by) if by >= 0 and taken == taken else (1.0, -1)


def _takes_part(program: Program, user: int) -> bool:
    """Whether a value takes a part of its operand that other places could do without.

    Of a gather whose indices depend on data, the rows could be gathered first if they are whole.
    """
    if takes_known_part(program, user):
        return True
    is_gather = program.name_of(user) == "gather"
    return is_gather and gathered_elements(program, user) >= _LEAST_ROW


def _share_times_ones(zeros: _Zeros, user: int, value: int) -> float:
    """The share of a value's elements that something does not multiply by zero."""
    program = zeros.program
    if program.name_of(user) == "select":
        return _chosen_share(program, user, value)
    others = [of for of in program.operands(user) if of != value]
    if len(others) != 1:
        return 1.0
    if program.name_of(user) in ("multiply", "and"):
        return zeros.filled_share(others[0])
    if program.name_of(user) == "add":
        return zeros.share_above(others[0])
    if program.name_of(user) in PRODUCTS:
        # Each element counts once: the product keeps apart what the matrix of ones chooses from.
        product = parse_instruction(program.texts.get(user, ""))
        if product is not None and product_flop(product) == 2.0 * program.shape_of(value).elements:
            return share_of_ones(program, others[0])
    return 1.0


def _chosen_share(program: Program, select: int, value: int) -> float:
    """The share of a value's elements in blocks of which a select takes any, by positions alone."""
    masks = program.operands(select, 0)
    if (
        len(masks) != 1
        or value in masks
        or program.operands(select, 1) == [value] == program.operands(select, 2)
    ):
        return 1.0
    return kept_share(program, masks[0], where=program.operands(select, 1) == [value])


class _Zeros:
    """Which arrays of a program are mostly zeros, whatever its arguments are."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._known: dict[int, float] = {}
        self._known_above: dict[int, float] = {}

    def filled_share(self, row: int) -> float:
        """The share of a value's elements that may be other than zero.

        Zero is what padding and updates leave out, where indices differ from positions, such as
        experts that a token has not chosen, and what is multiplied by zeros.
        """
        place = origin(self.program, row, (*SAME_ELEMENTS, "broadcast"))
        if place not in self._known:
            self._known[place] = 1.0  # while it is computed
            self._known[place] = self._share(place)
        return self._known[place]

    def _share(self, row: int) -> float:
        program, name = self.program, self.program.name_of(row)
        if (ones := share_of_ones(program, row)) < 1:
            return ones
        operands = program.operands(row)
        if name == "pad" or (name == "scatter" and self._is_of_zeros(row)):
            filling = program.operands(row, _FILLING[name])
            filled = sum(program.shape_of(of).elements for of in filling)
            return min(filled / max(program.shape_of(row).elements, 1), 1.0) if filled else 1.0
        if program.shape_of(row).dtype == "pred":
            return kept_share(program, row)
        if name == "select":
            return self._chosen_from(row, _is_zero)
        if name == "exponential":
            return self.share_above(operands[0])
        if name in ("multiply", "and", "divide"):
            factors = program.operands(row, 0) if name == "divide" else operands
            return min(map(self.filled_share, factors), default=1.0)
        if name in ("add", "subtract", "negate"):
            return min(sum(map(self.filled_share, operands)), 1.0)
        if name == "reduce":
            summed = program.operands(row, 0)
            is_row = len(summed) == 1 and _is_of_rows(program, row, summed[0])
            return self.filled_share(summed[0]) if is_row and self._fills_rows(summed[0]) else 1.0
        return 1.0

    def _chosen_from(self, select: int, is_left_out: Callable[[float], bool]) -> float:
        """The share of a select's elements that are not one number, by positions alone."""
        program, through = self.program, (*SAME_ELEMENTS, "broadcast")
        for slot, other in ((1, 2), (2, 1)):
            values, others = program.operands(select, slot), program.operands(select, other)
            numbers = [program.numbers.get(origin(program, of, through)) for of in others]
            if len(values) == 1 and any(n is not None and is_left_out(n) for n in numbers):
                return min(_chosen_share(program, select, values[0]), self.filled_share(values[0]))
        return 1.0

    def share_above(self, row: int) -> float:
        """The share of a value's elements that a mask has not set to a number far below zero.

        A mask may be added, and in a softmax, the maximum of a row is subtracted.
        """
        place = origin(self.program, row, (*SAME_ELEMENTS, "broadcast"))
        if place not in self._known_above:
            self._known_above[place] = 1.0  # while it is computed: a sum in a loop adds to itself
            self._known_above[place] = self._share_above(place)
        return self._known_above[place]

    def _share_above(self, row: int) -> float:
        name = self.program.name_of(row)
        if name in ("add", "subtract"):
            terms = self.program.operands(row, 0 if name == "subtract" else None)
            return min(map(self.share_above, terms), default=1.0)
        return self._chosen_from(row, _is_far_below) if name == "select" else 1.0

    def _is_of_zeros(self, scatter: int) -> bool:
        """Whether a scatter writes into an array that nothing else has filled."""
        through = (*SAME_ELEMENTS, "broadcast")
        into = [origin(self.program, of, through) for of in self.program.operands(scatter, 0)]
        return bool(into) and all(self.program.name_of(of) == "constant" for of in into)

    def _fills_rows(self, row: int) -> bool:
        """Whether an array is filled row by row, so that its other rows are zero."""
        place = origin(self.program, row)
        slot = _FILLING.get(self.program.name_of(place))
        filling = [] if slot is None else self.program.operands(place, slot)
        width = self.program.shape_of(place).dims[-1:]
        return bool(filling) and all(self.program.shape_of(of).dims[-1:] == width for of in filling)


def _is_zero(number: float) -> bool:
    return number == 0


def _is_far_below(number: float) -> bool:
    return number <= _FAR_BELOW


def _is_of_rows(program: Program, user: int, value: int) -> bool:
    """Whether something sums up the last dimension of a value."""
    dims = program.shape_of(value).dims
    return program.name_of(user) == "reduce" and program.shape_of(user).dims == dims[:-1]


def _takes_rows(program: Program, taker: int) -> bool:
    """Whether what takes a part of an array takes whole rows of it."""
    taken, sources = program.shape_of(taker).dims, program.operands(taker, 0)
    if program.name_of(taker) == "select":
        return all(masks_rows(program, mask) for mask in sources)
    if sources and all(_is_sum_of_rows(program, of) for of in sources):
        return True
    rows = [program.shape_of(of).dims for of in sources]
    return bool(taken) and all(bool(dims) and dims[-1] == taken[-1] for dims in rows)


def _is_sum_of_rows(program: Program, row: int) -> bool:
    """Whether a value is mapped from sums over the last dimension, which stand for rows."""
    for _ in range(_MOST_SUMMED):
        operands = program.operands(row)
        if program.name_of(row) == "reduce":
            return bool(operands) and _is_of_rows(program, row, operands[0])
        arrays = [of for of in operands if program.shape_of(of).dims == program.shape_of(row).dims]
        is_map = program.name_of(row) in (*SAME_ELEMENTS, *MAPS)
        if not is_map or not arrays:
            return False
        row = arrays[0]
    return False


def _keeps_rows(program: Program, product: int, value: int) -> bool:
    """Whether a product contracts the last dimension of a value, and keeps its rows as rows."""
    parsed = parse_instruction(program.texts.get(product, ""))
    slots = [slot for slot in (0, 1) if value in program.operands(product, slot)]
    if parsed is None or len(slots) != 1 or not parsed.operands:
        return False
    if program.name_of(product) == "dot":
        return slots == [0] and len(parsed.operands[0].dims) - 1 in parsed.contracting
    if parsed.labels is None:
        return False
    contracted, result = ("f", "f") if slots == [0] else ("i", "b")
    return parsed.labels[slots[0]][-1:] == contracted and parsed.labels[2][-1:] == result


def _multiplies_rows(program: Program, product: int, value: int) -> bool:
    """Whether a product multiplies the rows of a value by something else.

    Such as an argument of the program, or an array along whose rows it sums up.
    """
    if _keeps_rows(program, product, value):
        return True
    factors = [of for slot in (0, 1) for of in program.operands(product, slot)]
    through = (*SAME_ELEMENTS, "slice", "dynamic-slice")
    others = [origin(program, of, through) for of in factors if of != value]
    return len(factors) == 2 and len(others) == 1 and program.argument[others[0]] >= 0


def _filled_share(zeros: _Zeros, product: int) -> tuple[float, int]:
    """The share of a factor that is not filled with zeros, and the factor."""
    program = zeros.program
    factors = [
        of
        for slot in (0, 1)
        for of in program.operands(product, slot)
        if program.shape_of(of).elements >= _LEAST_ELEMENTS
    ]
    return min(((zeros.filled_share(of), of) for of in factors), default=(1.0, -1))


def mapped_rows(program: Program, product: int) -> list[int]:
    """What maps a value element by element, sums of its rows aside."""
    size, pending, seen = program.shape_of(product).elements, [product], {product}
    while pending and len(seen) < _MOST_STEPS:
        for user in program.users(pending.pop()):
            is_map = program.name_of(user) in (*SAME_ELEMENTS, *MAPS, "reduce-window")
            if user not in seen and is_map and program.shape_of(user).elements == size:
                seen.add(user)
                pending.append(user)
    return list(seen)


class RepeatedRows(Struct, frozen=True):
    """A product of rows that a gather or a broadcast repeats."""

    share: float
    """Of its rows, those that differ."""
    joins: frozenset[int]
    """What brings the rows together for this product alone, by row of the program."""


@memoized
def repeated_rows(signals: Signals) -> dict[tuple[str, int], RepeatedRows]:
    """The products of which many rows are the same, by module and row of the product.

    These have the same result each time: to multiply first takes fewer FLOP. Of arrays that are
    joined along what the product contracts, each can be multiplied on its own.
    """
    found = {}
    for running in running_programs(signals):
        program = running.program
        for product in program.rows_of(PRODUCTS):
            for value in program.operands(product):
                if _is_of_matrix(program, product, value):
                    share = _distinct(program, value) / max(program.shape_of(value).elements, 1)
                    if share <= _MOST_USED:
                        joins = _only_for(program, product, value)
                        found[program.module, product] = RepeatedRows(share, joins)
    return found


def _only_for(program: Program, product: int, value: int) -> frozenset[int]:
    """What moves or joins arrays, and is read by nothing but a product."""
    found, pending = {product}, [value]
    while pending:
        row = pending.pop()
        is_join = program.name_of(row) in (*SAME_ELEMENTS, *_JOINS) and not program.is_result[row]
        if row not in found and is_join and found.issuperset(program.users(row)):
            found.add(row)
            pending += program.operands(row)
    return frozenset(found - {product})


def _is_of_matrix(program: Program, product: int, value: int) -> bool:
    """Whether a product multiplies each row of a value by the same matrix, and nothing else."""
    dims, result = program.shape_of(value).dims, program.shape_of(product)
    others = [of for of in program.operands(product) if of != value]
    parsed = parse_instruction(program.texts.get(product, ""))
    if len(others) != 1 or parsed is None or not dims or not result.dims:
        return False
    matrix = program.shape_of(others[0]).elements
    terms = result.elements * dims[-1]
    return (
        program.shape_of(value).elements >= _LEAST_ELEMENTS
        and _keeps_rows(program, product, value)
        and product_flop(parsed) == 2.0 * terms
        and matrix * program.shape_of(value).elements == terms * dims[-1]
    )


def _distinct(program: Program, row: int, depth: int = 0) -> float:
    """How many elements the distinct rows of a value have at most."""
    shape = program.shape_of(row)
    width, name = shape.dims[-1:], program.name_of(row)
    whole = float(shape.elements)
    operands = program.operands(row)
    of_rows = [of for of in operands if program.shape_of(of).dims[-1:] == width]
    if depth > _MOST_DEPTH or not width or not operands:
        return whole
    if name in SAME_ELEMENTS and of_rows == operands:
        return _distinct(program, operands[0], depth + 1)
    if name == "gather" and gathered_elements(program, row) == width[0]:
        tables = program.operands(row, 0)
        return min([whole, *(float(program.shape_of(of).elements) for of in tables)])
    if name == "broadcast":
        has_rows = program.dimensions.get(row, ())[-1:] == (len(shape.dims) - 1,)
        is_same = has_rows and of_rows == operands
        return min(whole, _distinct(program, operands[0], depth + 1) if is_same else whole)
    if name == "pad":
        of = operands[0]
        is_wider = program.shape_of(of).dims[:-1] == shape.dims[:-1]
        return _distinct(program, of, depth + 1) if is_wider else whole
    is_joined = name == "maximum" and all(
        program.name_of(origin(program, of)) == "pad" for of in operands
    )
    if name == "concatenate" or is_joined:
        return min(whole, sum(_distinct(program, of, depth + 1) for of in operands))
    return whole


class CostlyOrder(Struct, frozen=True):
    """Two products, of which the other order needs fewer FLOP."""

    running: Running
    first: int
    """The row of the product that is computed first, and whose result only other products read."""
    users: tuple[int, ...]
    """The rows of the products of which it is a factor."""
    share: float
    """FLOP of the other order relative to this one."""


@memoized
def costly_orders(signals: Signals) -> tuple[CostlyOrder, ...]:
    """Pairs of matrix products in the costlier order."""
    found = []
    for running in running_programs(signals):
        program = running.program
        products = set(program.rows_of(PRODUCTS))
        for first in sorted(products):
            users = list(readers(program, first))
            if not users or not set(users) <= products or program.is_result[first]:
                continue
            share = _other_order(program, first, users)
            if share is not None and share < _MOST_USED:
                found.append(CostlyOrder(running, first, tuple(users), share))
    return tuple(found)


def _other_order(program: Program, first: int, users: list[int]) -> float | None:
    """FLOP of A(BC) relative to (AB)C; None unless all are products of two matrices, or of many.

    `first` is the row of AB, and `users` are those of all products of which it is a factor.
    """
    inner = _sides(program, first)
    if inner is None:
        return None
    now, then = prod(inner), 0
    for second in users:
        outer = _sides(program, second)
        of_first = [origin(program, factor) == first for factor in program.operands(second)]
        if outer is None or of_first.count(True) != 1 or outer.batch != inner.batch:
            return None
        # What the second contracts has to be the rows or the columns of the first, and no batch.
        if outer.contracted not in {inner.rows, inner.columns} - {inner.batch}:
            return None
        now += prod(outer)
        of_other = outer.columns if of_first[0] else outer.rows
        then += inner.batch * inner.contracted * of_other * (inner.rows + inner.columns)
    return then / now


class _Sides(NamedTuple):
    """How many products of matrices there are, and the sizes of their matrices."""

    batch: int
    rows: int
    contracted: int
    columns: int


def _sides(program: Program, product: int) -> _Sides | None:
    """The sizes of a product of matrices, or of many, in any order; None for others."""
    parsed = parse_instruction(program.texts.get(product, ""))
    flop = product_flop(parsed) if parsed is not None else None
    factors = [program.operands(product, slot) for slot in (0, 1)]
    if not flop or any(len(factor) != 1 for factor in factors):
        return None
    left, right, result = (
        max(program.shape_of(row).elements, 1) for row in (*factors[0], *factors[1], product)
    )
    terms = flop / 2
    # B products have BMKN terms, BMK and BKN elements in the factors, and BMN in the result.
    sizes = left * right * result / terms**2, terms / right, terms / result, terms / left
    is_whole = all(size.is_integer() for size in sizes)
    return _Sides(*map(int, sizes)) if is_whole else None


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


_SMALL = 8
"""What has an eighth of an array's elements or fewer can be expanded to it again."""
_MOST_EXPANSIONS = 8
_NONLINEAR = (
    *("abs", "cosine", "divide", "erf", "exponential", "exponential-minus-one", "log"),
    *("log-plus-one", "logistic", "maximum", "minimum", "power", "rsqrt", "sine", "sqrt", "tanh"),
)


@memoized
def nonlinear_pairs(signals: Signals) -> frozenset[int]:
    """Operations, by row of the `HloTable`, that apply a function to each pair of elements.

    Then no matrix product does the same: `1 / (x - y)`, unlike `(x - y)^2`.
    """
    found = set[int]()
    for running in running_programs(signals):
        program = running.program
        for row in program.rows_of(_NONLINEAR):
            for operation in running.of([row]):
                is_sum = "reduce" in operation.inside
                pairs = operation.inside_elements
                if is_sum and 2 * program.shape_of(row).elements >= pairs > 0:
                    found.add(operation.op)
    return frozenset(found)


@memoized
def _returned(signals: Signals) -> frozenset[int]:
    """Operations whose results programs return: these have to be written."""
    return frozenset(
        operation.op
        for running in running_programs(signals)
        for operation in running.of(running.program.is_result.nonzero()[0].tolist())
    )


def readers_of_expanded(
    signals: Signals, expanding: Sequence[XlaOperation]
) -> Iterator[tuple[XlaOperation, int]]:
    """Operations that read or write expanded arrays, with the bytes of these in each.

    An operation that computes as many elements from an expanded array and small ones writes an
    expanded array, too.
    """
    readers: dict[int, XlaOperation] = {}
    less_bytes: Counter[int] = Counter()
    returned = _returned(signals)
    frontier, written = list(expanding), {operation.op for operation in expanding}
    for _ in range(_MOST_EXPANSIONS):
        following = []
        expanded_elements: Counter[int] = Counter()
        for reader, shape in readers_of(signals, frontier):
            readers[reader.op] = reader
            less_bytes[reader.op] += stored_bytes(shape)
            expanded_elements[reader.op] += shape.elements
        for op, elements in expanded_elements.items():
            reader = readers[op]
            results, operands = reader.instruction.results, reader.instruction.operands
            other = sum(shape.elements for shape in operands) - elements
            is_expanded = len(results) == 1 and results[0].elements >= elements
            is_map = reader.product is None and op not in written and op not in returned
            if is_map and is_expanded and other * _SMALL <= elements:
                written.add(op)
                less_bytes[op] += stored_bytes(*results)
                following.append(reader)
        frontier = following
        if not frontier:
            break
    for op, reader in readers.items():
        yield reader, less_bytes[op]
