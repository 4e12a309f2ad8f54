"""What the operations of a program read, write and compute, and what of that is needed.

Operations together need at least the arrays that they read from outside, those that others read of
them, and the useful FLOP of their products, at usual rates.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import permutations
from math import inf

from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.devices import (
    differing_values,
    repeated_products,
)
from tb_perfadvisor.signals.program.graph import (
    FREE,
    PRODUCTS,
    SAME_ELEMENTS,
    Running,
    count_of,
    element_ns,
    matrix_unit_side,
    origin,
    readers,
    running_programs,
    single_elements_ns,
    takes_known_part,
    total_ns,
)
from tb_perfadvisor.signals.program.loop_work import (
    EXCHANGES,
    LEAST_NS,
)
from tb_perfadvisor.signals.program.loops import reached
from tb_perfadvisor.signals.program.moved_rows import (
    gathers_windows,
    is_one_hot_matrix,
    one_hot_products,
    share_of_ones,
)
from tb_perfadvisor.signals.program.useful_work import (
    costly_orders,
    mapped_rows,
    partly_used_products,
    repeated_rows,
    values_times_zero,
)
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import achievable_bandwidth
from tb_perfadvisor.signals.tpu.product_time import flop_time_ns, least_product_ns, product_flop
from tb_perfadvisor.trace.hlo_text import Shape, parse_instruction
from tb_perfadvisor.trace.program import Program
from tb_perfadvisor.units import NS_PER_S

_ON_CHIP = 0.1
"""What a byte in the chip's own memory costs, relative to one in the device's memory."""
_SIMPLE = {
    **{"add": "add", "div": "divide", "max": "maximum"},
    **{"min": "minimum", "mul": "multiply", "sub": "subtract"},
}
"""What computes an operation of the source where the device has it."""
_MOST_PLAIN = 0.75
"""Of the operations that compute one of the source, where the device has it not."""
_MANY = 8
"""Operations of one name in the source, also on several lines of it."""
_MOST_RENAMED = 64
_MOST_DEPTH = 64
_ROW_NS = 4.0
"""Of a row that a gather moves, as XLA's compiler schedules gathers for v5e, v5p and v6e."""
_LEAST_OF_LOOK_UP = 1 / 6
"""Of a product that looks rows up: gathers move small pieces."""
_TAKES = ("slice", "dynamic-slice", "gather")
_OF_ONE_SUM = 2
"""Operands of a sum: the array, and what it begins with."""
_UNKNOWN = frozenset(
    {
        *("call", "conditional", "rng", "rng-bit-generator", "scatter"),
        *("select-and-scatter", "sort", "while"),
    }
)
"""How long these need depends on more than the size of their arrays."""
MOVES = frozenset((*SAME_ELEMENTS, *FREE, "concatenate", "dynamic-slice", "slice"))
_LINEAR = MOVES | {"add", "and", "dynamic-update-slice", "multiply", "negate", "pad", "subtract"}


class Needs(Struct, frozen=True):
    """What a part takes and needs over the used window, in ns and bytes."""

    time_ns: float
    border_bytes: float
    product_ns: float
    nonlinear_ns: float
    """For arithmetic on single elements that no product replaces."""
    unknown_ns: float
    """The time of operations whose need is not known."""
    least_ns: float
    border_elements: int
    """Of the largest array that crosses the border."""

    def known_ns(self, bytes_per_s: float) -> float:
        """What the operations need whose need is known."""
        moves_ns = self.border_bytes / bytes_per_s * NS_PER_S
        return max(moves_ns, self.product_ns, self.nonlinear_ns, self.least_ns)


class UsefulProduct(Struct, frozen=True):
    """One execution of a product: its FLOP, those that are useful, and what these need."""

    flop: float
    useful_flop: float
    needed_ns: float


class WorkOfOperations:
    """What the operations of a program read, write and compute."""

    def __init__(self, signals: Signals, running: Running, bytes_per_s: float) -> None:
        """Collect the arrays of each operation."""
        self.signals, self.running, self.bytes_per_s = signals, running, bytes_per_s
        program = self.program = running.program
        self.count = {
            name: count_of(signals, operation)
            for name, operation in running.operations.items()
            if not operation.opcode.endswith(("-start", "-done"))
        }
        self.rows: dict[str, list[int]] = defaultdict(list)
        for row in range(len(program)):
            if program.kernel_of(row) in self.count:
                self.rows[program.kernel_of(row)].append(row)
        self.looked_up = one_hot_products(program)
        self.times_zero = values_times_zero(program)
        self.windows = {
            row: count
            for row in program.rows_of(("gather",))
            if (count := gathers_windows(program, row))
        }
        self.used = {
            part.product: part
            for part in partly_used_products(signals)
            # Running sums of a few ones are not ones themselves.
            if part.running.program is program and not self._sums_ranges(part.product)
        }
        self.mapped_share = {
            row: part.used
            for part in self.used.values()
            if part.by not in program.operands(part.product)
            for row in mapped_rows(program, part.product)
        }
        masked = {part.product for part in self.used.values() if part.is_masked}
        self.masked = masked.union(
            *(mapped_rows(program, row) for row in masked if row in self.mapped_share)
        )
        """What is computed of elements that a mask of positions leaves out."""
        self.reads: dict[str, dict[int, float]] = {name: {} for name in self.rows}
        self.readers: dict[int, set[str]] = defaultdict(set)
        for name, rows in self.rows.items():
            for row in rows:
                for operand in program.operands(row):
                    self._read(name, operand)
        self.results = {self.source(row) for row in range(len(program)) if program.is_result[row]}
        self.repeated = {
            row for of, rows in repeated_products(signals) if of.program is program for row in rows
        }
        self.differs = differing_values(program) if program.devices > 1 else None
        self.other_order = {
            row: pair.share
            for pair in costly_orders(signals)
            if pair.running.program is program
            for row in (pair.first, *pair.users)
        }
        self.repeats = {
            row: repeated
            for (module, row), repeated in repeated_rows(signals).items()
            if module == program.module
        }
        joins = (repeated.joins for repeated in self.repeats.values())
        self.needless = self.times_zero.union(*joins)
        self.divided = _divided_products(program, matrix_unit_side(signals))
        self.products = {
            row: product
            for rows in self.rows.values()
            for row in rows
            if (product := self._product(row)) is not None
        }
        self.between = {row for row in self.products if self._is_between_products(row)}
        self.time_ns = {name: total_ns(signals, [running.operations[name]]) for name in self.rows}
        self.emulated_share = {name: self._emulated_share(name) for name in self.rows}
        self.maps_largest = {name: self._maps_largest(name) for name in self.rows}
        """Whether anything but a product is computed from all elements of the largest array."""
        self.nonlinear_ns = {name: self._nonlinear_ns(name) for name in self.rows}
        self.is_known = {name: self._is_known(name) for name in self.rows}

    def source(self, row: int) -> int:
        """What computes an array that operations which never execute rename."""
        for _ in range(_MOST_RENAMED):
            is_executed = self.program.kernel_of(row) in self.count
            operands = self.program.operands(row, 0)
            if is_executed or self.program.argument[row] >= 0 or len(operands) != 1:
                break
            (row,) = operands
        return row

    def _read(self, name: str, operand: int) -> None:
        source = self.source(operand)
        if name in (self.program.kernel_of(operand), self.program.kernel_of(source)):
            return
        users = [
            user
            for user in self.program.users(operand)
            if self.program.kernel_of(user) == name and user not in self.times_zero
        ]
        if not users:
            return
        size = self._stored_bytes(source)
        if all(self._takes_part(user, operand) for user in users):
            taken = (user for user in users if self.program.name_of(user) in _TAKES)
            size = min(size, sum(self.program.shape_of(user).padded_bytes for user in taken))
        if self.looked_up.issuperset(users) and not is_one_hot_matrix(self.program, operand):
            # Of the table, as many rows as the result has.
            size = min(size, sum(self.program.shape_of(user).padded_bytes for user in users))
        read = self.reads[name]
        read[source] = max(read.get(source, 0.0), size * self.count[name])
        self.readers[source].add(name)

    def _takes_part(self, user: int, operand: int) -> bool:
        """Whether a value reads a part of an operand, or writes into a part of it."""
        name = self.program.name_of(user)
        takes = name in _TAKES or name == "dynamic-update-slice"
        return takes and operand in self.program.operands(user, 0)

    def written(self, row: int) -> float:
        """Bytes of an array that leaves its operation."""
        size = self._stored_bytes(row)
        if self.program.name_of(row) == "dynamic-update-slice":
            updates = self.program.operands(row, 1)
            size = min([size, *(self.program.shape_of(of).padded_bytes for of in updates)])
        return size * self.count[self.program.kernel_of(row)]

    def _stored_bytes(self, row: int) -> float:
        """Bytes of the part of an array that anything needs."""
        return _stored_bytes(self.program.shape_of(row)) * self.mapped_share.get(row, 1.0)

    def _product(self, row: int) -> UsefulProduct | None:
        if self.program.name_of(row) not in PRODUCTS:
            return None
        product = parse_instruction(self.program.texts.get(row, ""))
        flop = product_flop(product) if product is not None else None
        if flop is None or product is None:
            return None
        needed_ns = least_product_ns(self.signals, product, together=self.divided.get(row, 1))
        if needed_ns is None:
            return None
        share = self.used[row].used if row in self.used else self.other_order.get(row, 1.0)
        share *= self.repeats[row].share if row in self.repeats else 1.0
        if row in self.repeated:
            share /= self.program.devices
        if self.has_constant_factor(row):
            share = 0.0
        if row in self.looked_up:
            shape = self.program.shape_of(row)
            row_size = next((size for size in reversed(shape.dims) if size > 1), 1)
            ones = sum(
                share_of_ones(self.program, of) * self.program.shape_of(of).elements
                for of in self.program.operands(row)
                if is_one_hot_matrix(self.program, of)
            )
            rows_ns = _ROW_NS * min(ones, shape.elements / row_size)
            return UsefulProduct(flop, 0.0, max(rows_ns, _LEAST_OF_LOOK_UP * needed_ns))
        return UsefulProduct(flop, flop * share, needed_ns * share)

    def _is_between_products(self, row: int) -> bool:
        """Whether the result of a needed product is only a factor of others.

        No operation computes two products, so that it has to be written and read.
        """
        product, users = self.products[row], list(readers(self.program, row))
        is_needed = product.useful_flop == product.flop
        return (
            is_needed
            and bool(users)
            and all(
                user in self.products
                and self.program.kernel_of(user) != self.program.kernel_of(row)
                for user in users
            )
        )

    def has_constant_factor(self, product: int) -> bool:
        """Whether a factor of a product depends on no data, such as a matrix of ones and zeros.

        Then the product moves elements, unless the factor adds ranges of them up, as running sums.
        """
        return bool(self._constant_factors(product)) and not self._sums_ranges(product)

    def _constant_factors(self, product: int) -> list[int]:
        factors = (of for slot in (0, 1) for of in self.program.operands(product, slot))
        return [
            factor
            for factor in factors
            if self.program.shape_of(factor).elements > 1
            and self.program.largest_argument[factor] <= 1
        ]

    def _sums_ranges(self, product: int) -> bool:
        """Whether a factor of a product depends on no data and adds ranges up."""
        return any(map(self._is_of_ranges, self._constant_factors(product)))

    def _is_of_ranges(self, row: int) -> bool:
        """Whether a matrix comes from a comparison of positions for more than equality."""
        before = {of: self.program.operands(of) for of in range(len(self.program))}
        made_of = reached([row], before) & set(self.program.rows_of(("compare",)))
        texts = (self.program.texts.get(of, "") for of in made_of)
        return any("direction=G" in text or "direction=L" in text for text in texts)

    def elements(self, row: int, moved: float) -> int:
        """Elements of the part of an array that is moved at a time, of `moved` bytes in all."""
        shape, count = self.program.shape_of(row), self.count.get(self.program.kernel_of(row), 1)
        whole = _stored_bytes(shape) * count
        return round(shape.elements * min(moved / whole, 1.0)) if whole else shape.elements

    def needs(self, part: frozenset[str]) -> Needs:
        """What some operations take and need together."""
        read: dict[int, float] = {}
        leaves: dict[int, float] = {}
        time_ns = product_ns = elements_ns = unknown_ns = 0.0
        is_divided = any(row in self.divided for name in part for row in self.rows[name])
        for name in sorted(part):
            count, now_ns = self.count[name], self.time_ns[name]
            time_ns += now_ns
            unknown_ns += 0.0 if self.is_known[name] else now_ns
            for source, size in self.reads[name].items():
                if self.program.kernel_of(source) not in part:
                    read[source] = max(read.get(source, 0.0), size)
            products = (self.products[row] for row in self.rows[name] if row in self.products)
            needed = self.nonlinear_ns[name], sum(product.needed_ns for product in products)
            # Rates say little of narrow products, but nothing needs longer than it takes.
            most_ns = now_ns if is_divided else inf
            elements, multiplied = (min(ns * count, most_ns) for ns in needed)
            elements_ns, product_ns = elements_ns + elements, product_ns + multiplied
            for row in self.rows[name]:
                if row in self.results:
                    leaves[row] = self.written(row)
                elif others := self.readers.get(row, part) - part:
                    # Of what is written, others may read a part.
                    read_later = sum(self.reads[other][row] for other in sorted(others))
                    leaves[row] = min(self.written(row), read_later)
                elif row in self.between:
                    leaves[row] = 2 * self.written(row)
        return Needs(
            time_ns,
            sum(read.values()) + sum(leaves.values()),
            product_ns,
            elements_ns,
            unknown_ns,
            LEAST_NS * max(self.count[name] for name in part),
            max((self.elements(*each) for each in (*read.items(), *leaves.items())), default=1),
        )

    def _nonlinear_ns(self, name: str) -> float:
        """What the arithmetic of an operation needs that no product replaces.

        Sums of products of expanded arrays are products. If anything else is computed from the
        largest array, all of its elements are needed.
        """
        rows, is_needed = self._on_elements(name), self.maps_largest[name]
        nonlinear = [row for row in rows if self._is_nonlinear(row)]
        each_ns = {
            row: single_elements_ns(self.signals, self.program, row)
            for row in (rows if is_needed else nonlinear)
        }
        whole_ns = sum(each_ns.values())
        elements_ns = sum(ns * self._needed_share(row) for row, ns in each_ns.items())
        now_ns = self.time_ns[name] / max(self.count[name], 1)
        if elements_ns < whole_ns:
            # Nothing needs longer than it takes: of narrow numbers, a cycle computes more.
            elements_ns *= min(now_ns / whole_ns, 1.0)
        elements_ns *= 1 - self.emulated_share[name]
        rows_ns = sum(self._windows_ns(row) for row in rows if row in self.windows)
        elements_ns += min(rows_ns, now_ns)
        return elements_ns if is_needed else max(elements_ns, self._product_instead_ns(rows))

    def _needed_share(self, row: int) -> float:
        """The share of a value's elements, or of those that it sums up, that anything needs."""
        of = [
            row,
            *(self.program.operands(row, 0) if self.program.name_of(row) == "reduce" else ()),
        ]
        return min(self.mapped_share.get(each, 1.0) for each in of)

    def _windows_ns(self, gather: int) -> float:
        """What windows need: their rows, or a product of each plane with its weights."""
        rows_ns = _ROW_NS * self.windows[gather]
        moved = self.program.shape_of(gather)
        (table, *_) = map(self.program.shape_of, self.program.operands(gather, 0))
        if table.dims[:1] != moved.dims[:1]:
            return rows_ns
        planes = table.dims[0]
        filled = min(moved.elements / planes / matrix_unit_side(self.signals), 1.0)
        flop = 2.0 * moved.elements * (table.elements / planes) / filled
        return min(rows_ns, flop_time_ns(self.signals, flop) or rows_ns)

    def _maps_largest(self, name: str) -> bool:
        size = {row: self.program.shape_of(row).elements for row in self._on_elements(name)}
        nonlinear = [row for row in size if self._is_nonlinear(row)]
        reads = [of for row in nonlinear for of in self.program.operands(row) if of in size]
        return any(size[row] == max(size.values()) for row in (*nonlinear, *reads))

    def _on_elements(self, name: str) -> list[int]:
        """The values of an operation that are computed element by element."""
        return [
            row
            for row in self.rows[name]
            if self.program.name_of(row) not in PRODUCTS and row not in self.needless
        ]

    def _product_instead_ns(self, rows: list[int]) -> float:
        """What a product takes that would compute a sum over expanded arrays.

        With few rows, columns or terms, it leaves the matrix unit mostly empty. Squares of sums and
        differences are the sum of three terms, of which one is such a product.
        """
        names = {self.program.name_of(row): row for row in rows}
        is_sum = names.keys() >= {"multiply", "reduce"}
        if not is_sum or is_one_hot_matrix(self.program, names["reduce"]):
            return 0.0
        largest = max(map(self.program.shape_of, rows), key=lambda shape: shape.elements)
        fewest = min((size for size in largest.dims if size > 1), default=1)
        flop = 2.0 * largest.elements * max(matrix_unit_side(self.signals) / fewest, 1.0)
        added = 2 * self.program.shape_of(names["reduce"]).elements
        added_ns = added * element_ns(self.signals) if names.keys() & {"add", "subtract"} else 0.0
        return (flop_time_ns(self.signals, flop) or 0.0) + added_ns

    def _emulated_share(self, name: str) -> float:
        """The share of the arithmetic of an operation that the source does not have.

        An addition is one in the source, and a dozen for numbers that the device has not.
        """
        arithmetic = [row for row in self.rows[name] if self.program.name_of(row) not in MOVES]
        sources: dict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
        for row in arithmetic:
            path = self.program.paths.get(row, "").rstrip(":")
            sources[path, self.program.shape_of(row).dims].append(self.program.name_of(row))
        surplus = 0
        for (path, _), opcodes in sources.items():
            # A line with many products has as many of the same kind.
            plain = opcodes.count(_SIMPLE.get(path.rpartition("/")[2], ""))
            is_simple = path.rpartition("/")[2] in _SIMPLE
            if is_simple and len(opcodes) > _MANY and plain <= _MOST_PLAIN * len(opcodes):
                surplus += len(opcodes) - 1
        return surplus / max(len(arithmetic), 1)

    def _is_nonlinear(self, row: int) -> bool:
        name = self.program.name_of(row)
        if name == "reduce":
            return len(self.program.operands(row)) > _OF_ONE_SUM
        if name in ("compare", "select"):
            return not self._is_of_positions(row)
        if name in ("custom-call", "gather"):
            return not self._is_priced(row)
        return name not in _LINEAR

    def _is_of_positions(self, row: int) -> bool:
        """Whether a value is a comparison with positions, or a choice by one."""
        for of in self.program.operands(row, 0) + self.program.operands(row, 1):
            made = origin(self.program, of, (*SAME_ELEMENTS, "broadcast"))
            name = self.program.name_of(made)
            if name == "iota" or (
                name == "compare" and made != row and self._is_of_positions(made)
            ):
                return True
        return False

    def _is_priced(self, row: int) -> bool:
        """Whether a gather takes a part that is known, or a custom call computes nothing.

        Such calls make room for an array, or check the indices of a gather.
        """
        name = self.program.name_of(row)
        if name == "custom-call" and self.program.operands(row):
            users = list(readers(self.program, row, (*SAME_ELEMENTS, "slice")))
            return all(self.program.name_of(user) == "gather" for user in users)
        return name != "gather" or takes_known_part(self.program, row) or row in self.windows

    def _is_known(self, name: str) -> bool:
        opcodes = {self.program.name_of(row): row for row in self.rows[name]}
        is_exchange = any(opcode.startswith(EXCHANGES) for opcode in opcodes)
        products = (row for opcode, row in opcodes.items() if opcode in PRODUCTS)
        return (
            not opcodes.keys() & _UNKNOWN
            and all(self._is_priced(row) for row in self.rows[name])
            and not is_exchange
            and all(row in self.products for row in products)
        )

    def moved(self, name: str) -> float:
        """Bytes that an operation reads and writes."""
        leaving = (r for r in self.rows[name] if r in self.results or self.readers.get(r))
        return sum(self.reads[name].values()) + sum(map(self.written, leaving))


@memoized
def useful_share(signals: Signals) -> float | None:
    """The share of the FLOP of products that their results need; None if FLOP are unknown."""
    flop = useful = 0.0
    for operations in work_of_programs(signals):
        for name, rows in operations.rows.items():
            for row in rows:
                if operations.program.name_of(row) not in PRODUCTS:
                    continue
                if row not in operations.products:
                    return None
                product, count = operations.products[row], operations.count[name]
                flop += product.flop * count
                useful += product.useful_flop * count
    return useful / flop if flop else None


@memoized
def work_of_programs(signals: Signals) -> tuple[WorkOfOperations, ...]:
    """The programs of the used window with what their operations do; none if rates are unknown."""
    bytes_per_s = achievable_bandwidth(signals)
    if bytes_per_s is None:
        return ()
    return tuple(WorkOfOperations(signals, one, bytes_per_s) for one in running_programs(signals))


def _divided_products(program: Program, side: int) -> dict[int, int]:
    """How many products could be one, by the row of each that leaves the matrix unit empty in part.

    They multiply one array by matrices of the same shape, or are only added up, and none of them
    needs another. `side` is that of the matrix unit.
    """
    columns = program.sources.tolist(), program.targets.tolist(), program.slots.tolist()
    edges = list(zip(*columns, strict=True))
    sources_of = Counter((target, slot) for _, target, slot in edges)
    users: dict[int, list[int]] = {row: [] for row in range(len(program))}
    for source, target, slot in edges:
        if sources_of[target, slot] == 1:  # the others come from the trip before
            users[source].append(target)
    numbers: dict[object, int] = {}
    alike: dict[object, list[int]] = defaultdict(list)
    for row in program.rows_of(PRODUCTS):
        factors = [of for slot in (0, 1) for of in program.operands(row, slot)]
        product = parse_instruction(program.texts.get(row, ""))
        flop = product_flop(product) if product is not None else None
        if len(factors) != 2 or not flop:
            continue
        contracted = flop / 2 / program.shape_of(row).elements
        like = int(program.loop[row]), program.shape_of(row).dims
        for factor, other in permutations(factors):
            if program.shape_of(other).elements < side * contracted:
                number = _number_of(program, factor, program.kernel_of(row), numbers)
                alike[like, number].append(row)
        if contracted < side and (total := _sum_of(program, row)) is not None:
            alike[like, "sum", total].append(row)
    return {
        row: len(rows)
        for rows in alike.values()
        if len(rows) > 1 and all(reached([row], users).isdisjoint({*rows} - {row}) for row in rows)
        for row in rows
    }


def _number_of(
    program: Program, row: int, kernel: str, numbers: dict[object, int], depth: int = 0
) -> int:
    """A number that values have in common which kernels compute in the same way of the same."""
    row = origin(program, row)
    if program.kernel_of(row) != kernel or depth > _MOST_DEPTH:
        return row
    if row not in numbers:
        numbers[row] = row  # a loop's state depends on itself
        operands = (
            _number_of(program, of, kernel, numbers, depth + 1) for of in program.operands(row)
        )
        computed = program.name_of(row), program.shape_of(row).dims, *operands
        numbers[row] = numbers.setdefault(computed, row)
    return numbers[row]


def _sum_of(program: Program, row: int) -> int | None:
    """The last of the sums that a value goes into, and nowhere else; None if there is none."""
    total = None
    for _ in range(_MOST_DEPTH):
        users = list(readers(program, row))
        if len(users) != 1 or program.name_of(users[0]) != "add":
            break
        total = row = users[0]
    return total


def _stored_bytes(shape: Shape) -> float:
    """Bytes of an array; those on the chip count little."""
    return shape.padded_bytes * (_ON_CHIP if shape.memory_space else 1.0)
