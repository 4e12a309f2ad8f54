"""Parts of a program that move or compute far more than what crosses their border.

A part is a set of operations. It needs at least the arrays that it reads from outside, those that
others read of it, and the useful FLOP of its products, at usual rates. What it takes beyond that
goes into arrays that exist only inside: patches of an image, a gradient for each example, a value
for each pair, states that nobody keeps.

Operations are joined if the arrays between them need more than what crosses the border of both. So
a chain of layers stays a chain: the program needs the arrays between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.devices import repeated_products
from tb_perfadvisor.signals.program.graph import (
    FREE,
    PRODUCTS,
    SAME_ELEMENTS,
    Running,
    count_of,
    origin,
    running_programs,
    single_elements_ns,
    total_ns,
)
from tb_perfadvisor.signals.program.useful_work import (
    PartlyUsed,
    costly_orders,
    mapped_rows,
    partly_used_products,
)
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import achievable_bandwidth
from tb_perfadvisor.signals.tpu.product_time import least_product_ns, product_flop
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.hlo_text import Shape, parse_instruction
from tb_perfadvisor.units import NS_PER_S

_LARGEST_REMAINDER = 0.6
"""Operations are one part if together they need at most this share of what they need apart."""
_MOST_OPERATIONS = 60
_LEAST_ARRAY = 0.002
"""Share of the window that moving an array has to take before operations are joined for it."""
_ON_CHIP = 0.1
"""What a byte in the chip's own memory costs, relative to one in the device's memory."""
_LEAST_NS = 1000.0
"""What an operation takes, however small it is."""
_INFLATED = 2.0
"""How much larger an array inside is than any that crosses the border."""
_MOST_NEEDED = 0.5
_MOST_NEEDED_FLAT = 0.1
"""The same for parts without such an array."""
_MOST_USEFUL = 0.75
"""Of the FLOP of products in excess."""
_MOST_UNKNOWN = 0.3
_MOST_RENAMED = 64
_TAKES = ("slice", "dynamic-slice", "gather")
_OF_ONE_SUM = 2
"""Operands of a sum: the array, and what it begins with."""
_MOVES = frozenset((*SAME_ELEMENTS, *FREE, "concatenate", "dynamic-slice", "slice"))
_LINEAR = _MOVES | {"add", "and", "dynamic-update-slice", "multiply", "negate", "pad", "subtract"}
_UNKNOWN = frozenset(
    {
        *("call", "conditional", "custom-call", "gather", "rng", "rng-bit-generator", "scatter"),
        *("select-and-scatter", "sort", "while"),
    }
)
"""How long these need depends on more than the size of their arrays."""
_EXCHANGES = ("all-", "collective-", "reduce-scatter")


class Excess(Struct, frozen=True):
    """A part of a program that does more than it needs; sums over the used window."""

    running: Running
    operations: tuple[XlaOperation, ...]
    """The costliest first."""
    time_ns: float
    needed_ns: float
    moved_bytes: float
    border_bytes: float
    flop: float
    useful_flop: float
    largest: int
    """The row of the largest array that it computes."""
    is_inflated: bool
    """Whether that array is larger than any that crosses the border."""
    has_constant_factor: bool
    """Whether a factor of a product depends on no data, so that it moves elements."""
    is_repeated: bool
    """Whether all devices compute the same product."""
    is_in_costly_order: bool
    """Whether other parentheses would need fewer FLOP."""
    used: PartlyUsed | None
    """A product of which a part is used."""

    @property
    def excess_ns(self) -> float:
        """The time beyond what is needed."""
        return self.time_ns - self.needed_ns


@memoized
def excess_work(signals: Signals) -> tuple[Excess, ...]:
    """The parts that do much more than they need, the largest excess first."""
    found = [excess for program in _programs(signals) for excess in program.in_excess()]
    return tuple(sorted(found, key=lambda excess: -excess.excess_ns))


@memoized
def useful_share(signals: Signals) -> float | None:
    """The share of the FLOP of products that their results need; None if FLOP are unknown."""
    flop = useful = 0.0
    for operations in _programs(signals):
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
def _programs(signals: Signals) -> tuple[_Operations, ...]:
    bytes_per_s = achievable_bandwidth(signals)
    if bytes_per_s is None:
        return ()
    return tuple(_Operations(signals, one, bytes_per_s) for one in running_programs(signals))


class _Needs(NamedTuple):
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


class _Product(NamedTuple):
    """One execution of a product: its FLOP, those that are useful, and what these need."""

    flop: float
    useful_flop: float
    needed_ns: float


class _Operations:
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
        self.reads: dict[str, dict[int, float]] = {name: {} for name in self.rows}
        self.readers: dict[int, set[str]] = defaultdict(set)
        for name, rows in self.rows.items():
            for row in rows:
                for operand in program.operands(row):
                    self._read(name, operand)
        self.results = {self._source(row) for row in range(len(program)) if program.is_result[row]}
        self.repeated = {
            row for of, rows in repeated_products(signals) if of.program is program for row in rows
        }
        self.used = {
            part.product: part
            for part in partly_used_products(signals)
            if part.running.program is program
        }
        self.other_order = {
            row: pair.share
            for pair in costly_orders(signals)
            if pair.running.program is program
            for row in (pair.first, *pair.users)
        }
        self.mapped_share = {
            row: part.used
            for part in self.used.values()
            for row in mapped_rows(program, part.product)
        }
        self.products = {
            row: product
            for rows in self.rows.values()
            for row in rows
            if (product := self._product(row)) is not None
        }

    def _source(self, row: int) -> int:
        """What computes an array that operations which never execute rename."""
        for _ in range(_MOST_RENAMED):
            is_executed = self.program.kernel_of(row) in self.count
            operands = self.program.operands(row, 0)
            if is_executed or self.program.argument[row] >= 0 or len(operands) != 1:
                break
            (row,) = operands
        return row

    def _read(self, name: str, operand: int) -> None:
        source = self._source(operand)
        if name in (self.program.kernel_of(operand), self.program.kernel_of(source)):
            return
        users = [u for u in self.program.users(operand) if self.program.kernel_of(u) == name]
        size = _stored_bytes(self.program.shape_of(source))
        if all(self._takes_part(user, operand) for user in users):
            taken = (user for user in users if self.program.name_of(user) in _TAKES)
            size = min(size, sum(self.program.shape_of(user).padded_bytes for user in taken))
        read = self.reads[name]
        read[source] = max(read.get(source, 0.0), size * self.count[name])
        self.readers[source].add(name)

    def _takes_part(self, user: int, operand: int) -> bool:
        """Whether a value reads a part of an operand, or writes into a part of it."""
        name = self.program.name_of(user)
        takes = name in _TAKES or name == "dynamic-update-slice"
        return takes and operand in self.program.operands(user, 0)

    def _written(self, row: int) -> float:
        """Bytes of an array that leaves its operation."""
        size = _stored_bytes(self.program.shape_of(row))
        if self.program.name_of(row) == "dynamic-update-slice":
            updates = self.program.operands(row, 1)
            size = min([size, *(self.program.shape_of(of).padded_bytes for of in updates)])
        return size * self.count[self.program.kernel_of(row)]

    def _product(self, row: int) -> _Product | None:
        if self.program.name_of(row) not in PRODUCTS:
            return None
        product = parse_instruction(self.program.texts.get(row, ""))
        flop = product_flop(product) if product is not None else None
        needed_ns = least_product_ns(self.signals, product) if product is not None else None
        if flop is None or needed_ns is None:
            return None
        share = self.used[row].used if row in self.used else self.other_order.get(row, 1.0)
        if row in self.repeated:
            share /= self.program.devices
        if self.has_constant_factor(row):
            share = 0.0
        return _Product(flop, flop * share, needed_ns * share)

    def has_constant_factor(self, product: int) -> bool:
        """Whether a factor of a product depends on no data, such as a matrix of ones and zeros."""
        factors = (of for slot in (0, 1) for of in self.program.operands(product, slot))
        return any(
            self.program.shape_of(factor).elements > 1 and self._data(factor) <= 1
            for factor in factors
        )

    def _data(self, row: int) -> int:
        """Elements of the largest argument on which a value depends."""
        pending, seen, most = [row], {row}, 0
        while pending:
            value = pending.pop()
            if self.program.argument[value] >= 0:
                most = max(most, self.program.shape_of(value).elements)
            new = set(self.program.operands(value)) - seen
            seen |= new
            pending += new
        return most

    def in_excess(self) -> Iterator[Excess]:
        """The parts that need much less than they take."""
        for part in dict.fromkeys(self._parts().values()):
            if (excess := self._excess(part)) is not None:
                yield excess

    def _parts(self) -> dict[str, frozenset[str]]:
        """The part of each operation, joined along the arrays that cost most."""
        parts = {name: frozenset((name,)) for name in self.rows}
        least = _LEAST_ARRAY * self.signals.attribution.window_ns * self.bytes_per_s / NS_PER_S
        moved = {
            source: self._written(source) + sum(self.reads[name][source] for name in readers)
            for source, readers in self.readers.items()
            if self.program.kernel_of(source) in parts and source not in self.results
        }
        for source in sorted(moved, key=lambda row: -moved[row]):
            if moved[source] < least:
                break
            names = (self.program.kernel_of(source), *self.readers[source])
            apart = {parts[name] for name in names}
            joined = frozenset().union(*apart)
            if len(apart) > 1 and len(joined) <= _MOST_OPERATIONS:
                apart_ns = sum(self._needs(part).known_ns(self.bytes_per_s) for part in apart)
                together_ns = self._needs(joined).known_ns(self.bytes_per_s)
                if together_ns <= _LARGEST_REMAINDER * apart_ns:
                    parts.update(dict.fromkeys(joined, joined))
        return parts

    def _needs(self, part: frozenset[str]) -> _Needs:
        read: dict[int, float] = {}
        leaves: dict[int, float] = {}
        time_ns = product_ns = elements_ns = unknown_ns = 0.0
        for name in sorted(part):
            count, now_ns = self.count[name], total_ns(self.signals, [self._operation(name)])
            time_ns += now_ns
            unknown_ns += 0.0 if self._is_known(name) else now_ns
            for source, size in self.reads[name].items():
                if self.program.kernel_of(source) not in part:
                    read[source] = max(read.get(source, 0.0), size)
            elements_ns += self._nonlinear_ns(name) * count
            for row in self.rows[name]:
                if row in self.products:
                    product_ns += self.products[row].needed_ns * count
                if row in self.results or not self.readers.get(row, part) <= part:
                    leaves[row] = self._written(row)
        return _Needs(
            time_ns,
            sum(read.values()) + sum(leaves.values()),
            product_ns,
            elements_ns,
            unknown_ns,
            _LEAST_NS * max(self.count[name] for name in part),
            max((self.program.shape_of(row).elements for row in (*read, *leaves)), default=1),
        )

    def _nonlinear_ns(self, name: str) -> float:
        """What the arithmetic of an operation needs that no product replaces.

        Sums of products of expanded arrays are products. If anything else is computed from the
        largest array, all of its elements are needed.
        """
        rows = [row for row in self.rows[name] if self.program.name_of(row) not in PRODUCTS]
        size = {row: self.program.shape_of(row).elements for row in rows}
        nonlinear = [row for row in rows if self._is_nonlinear(row)]
        reads = [of for row in nonlinear for of in self.program.operands(row) if of in size]
        is_needed = any(size[row] == max(size.values()) for row in (*nonlinear, *reads))
        return sum(
            single_elements_ns(self.signals, self.program, row) * self.mapped_share.get(row, 1.0)
            for row in (rows if is_needed else nonlinear)
        )

    def _is_nonlinear(self, row: int) -> bool:
        name = self.program.name_of(row)
        if name == "reduce":
            return len(self.program.operands(row)) > _OF_ONE_SUM
        if name in ("compare", "select"):
            return not self._is_of_positions(row)
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

    def _operation(self, name: str) -> XlaOperation:
        return self.running.operations[name]

    def _is_known(self, name: str) -> bool:
        opcodes = {self.program.name_of(row): row for row in self.rows[name]}
        is_exchange = any(opcode.startswith(_EXCHANGES) for opcode in opcodes)
        products = (row for opcode, row in opcodes.items() if opcode in PRODUCTS)
        return (
            not opcodes.keys() & _UNKNOWN
            and not is_exchange
            and all(row in self.products for row in products)
        )

    def _excess(self, part: frozenset[str]) -> Excess | None:
        needs = self._needs(part)
        needed_ns = needs.known_ns(self.bytes_per_s)
        if needs.unknown_ns > _MOST_UNKNOWN * needs.time_ns:
            return None
        rows = [row for name in sorted(part) for row in self.rows[name]]
        computed = [row for row in rows if self.program.name_of(row) not in FREE]
        largest = max(computed, key=lambda row: self.program.shape_of(row).elements, default=-1)
        if largest < 0:
            return None
        elements = self.program.shape_of(largest).elements
        is_inflated = elements >= _INFLATED * max(needs.border_elements, 1)
        products = [row for row in rows if row in self.products]
        flop, useful = (
            sum(amount * self.count[self.program.kernel_of(row)] for row, amount in amounts)
            for amounts in (
                [(row, self.products[row].flop) for row in products],
                [(row, self.products[row].useful_flop) for row in products],
            )
        )
        if not is_inflated and useful >= _MOST_USEFUL * flop:
            only_moves = all(self.program.name_of(row) in _MOVES for row in rows)
            if products or only_moves or needed_ns > _MOST_NEEDED_FLAT * needs.time_ns:
                return None
        is_repeated = any(row in self.repeated for row in products)
        if is_repeated:  # each device would do its part
            needed_ns = min(needed_ns, needs.time_ns / self.program.devices)
        if needed_ns > _MOST_NEEDED * needs.time_ns:
            return None
        operations = sorted(
            (self._operation(name) for name in sorted(part)),
            key=lambda operation: -total_ns(self.signals, [operation]),
        )
        moved = sum(
            sum(self.reads[name].values()) + sum(self._written(row) for row in self._leaving(name))
            for name in part
        )
        return Excess(
            self.running,
            tuple(operations),
            needs.time_ns,
            needed_ns + needs.unknown_ns,
            moved,
            needs.border_bytes,
            flop,
            useful,
            largest,
            is_inflated,
            any(self.has_constant_factor(row) for row in products),
            is_repeated,
            any(row in self.other_order for row in products),
            next((self.used[row] for row in products if row in self.used), None),
        )

    def _leaving(self, name: str) -> Iterable[int]:
        return (row for row in self.rows[name] if row in self.results or self.readers.get(row))


def _stored_bytes(shape: Shape) -> float:
    """Bytes of an array; those on the chip count little."""
    return shape.padded_bytes * (_ON_CHIP if shape.memory_space else 1.0)
