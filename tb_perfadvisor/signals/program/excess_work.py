"""Parts of a program that move or compute far more than what crosses their border.

A part is a set of operations. It needs at least the arrays that it reads from outside, those that
others read of it, and the useful FLOP of its products, at usual rates. What it takes beyond that
goes into arrays that exist only inside: patches of an image, a gradient for each example, a value
for each pair, states that nobody keeps.

Operations are joined if the arrays between them need more than what crosses the border of both. So
a chain of layers stays a chain: the program needs the arrays between them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import permutations
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.devices import (
    differing_values,
    gathers_read_in_part,
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
    Avoidable,
    AvoidableWork,
    loop_work,
)
from tb_perfadvisor.signals.program.loops import reached
from tb_perfadvisor.signals.program.moved_rows import is_one_hot_matrix, one_hot_products
from tb_perfadvisor.signals.program.useful_work import (
    PartlyUsed,
    costly_orders,
    mapped_rows,
    partly_used_products,
)
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import achievable_bandwidth
from tb_perfadvisor.signals.tpu.product_time import flop_time_ns, least_product_ns, product_flop
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
_INFLATED = 2.0
"""How much larger an array inside is than any that crosses the border."""
_MOST_NEEDED = 0.7
_MOST_NEEDED_FLAT = 0.1
"""The same for parts without such an array."""
_MOST_USEFUL = 0.75
"""Of the FLOP of products in excess."""
_MOST_UNKNOWN = 0.3
_SIMPLE = frozenset({"add", "div", "max", "min", "mul", "sub"})
_MANY = 8
"""Operations of one name in the source, also on several lines of it."""
_LARGE = 1 << 16
"""Elements of arrays that devices could split."""
_LARGE_INPUT = 1 / 16
"""Of an array that operations share: if others are as large as this, they have to be the same."""
_MOST_RENAMED = 64
_ROW_NS = 4.0
"""Of a row that a gather moves, as XLA's compiler schedules gathers for v5e, v5p and v6e."""
_LEAST_OF_LOOK_UP = 1 / 6
"""Of a product that looks rows up: gathers move small pieces."""
_TAKES = ("slice", "dynamic-slice", "gather")
_OF_ONE_SUM = 2
"""Operands of a sum: the array, and what it begins with."""
_MOVES = frozenset((*SAME_ELEMENTS, *FREE, "concatenate", "dynamic-slice", "slice"))
_LINEAR = _MOVES | {"add", "and", "dynamic-update-slice", "multiply", "negate", "pad", "subtract"}
_UNKNOWN = frozenset(
    {
        *("call", "conditional", "rng", "rng-bit-generator", "scatter"),
        *("select-and-scatter", "sort", "while"),
    }
)
"""How long these need depends on more than the size of their arrays."""


class Excess(Struct, frozen=True):
    """A part of a program that does more than it needs; sums over the used window."""

    running: Running
    operations: tuple[XlaOperation, ...]
    """The one that does most beyond its product first."""
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
    is_emulated: bool
    """Whether many operations do what is one in the source, as for 64-bit numbers."""
    is_in_costly_order: bool
    """Whether other parentheses would need fewer FLOP."""
    used: PartlyUsed | None
    """A product of which a part is used."""
    is_look_up: bool = False
    """Whether a product with a one-hot matrix looks rows up."""
    avoidable: AvoidableWork | None = None
    """Trips of a loop that could run at once, and other work that loops do twice."""

    @property
    def is_explained(self) -> bool:
        """Whether anything says why it takes longer than it needs."""
        return (
            self.is_inflated
            or self.is_repeated
            or self.is_emulated
            or self.avoidable is not None
            or self.useful_flop < _MOST_USEFUL * self.flop
        )

    @property
    def excess_ns(self) -> float:
        """The time beyond what is needed."""
        return self.time_ns - self.needed_ns


@memoized
def excess_work(signals: Signals) -> tuple[Excess, ...]:
    """The parts that do much more than they need, the largest excess first."""
    found = [excess for program in _programs(signals) for excess in program.in_excess()]
    found += [
        _of_work(work) for works in (loop_work, gathers_read_in_part) for work in works(signals)
    ]
    found += [
        _of_work(work) for program in _programs(signals) for work in program.passes_over_arrays()
    ]
    chosen, claimed = [], set[int]()
    for excess in sorted(found, key=lambda excess: -excess.excess_ns):
        operations = {operation.op for operation in excess.operations}
        if not operations & claimed:
            chosen.append(excess)
            claimed |= operations
    return tuple(chosen)


def _of_work(work: AvoidableWork) -> Excess:
    """Work that is known to be avoidable, as a part of the program."""
    program = work.running.program
    rows = [row for row in range(len(program)) if program.kernel_of(row) == work.names[0]]
    return Excess(
        running=work.running,
        operations=tuple(work.running.operations[name] for name in work.names),
        time_ns=work.time_ns,
        needed_ns=work.needed_ns,
        moved_bytes=work.moved_bytes,
        border_bytes=work.border_bytes,
        flop=0.0,
        useful_flop=0.0,
        largest=max(rows, key=lambda row: program.shape_of(row).elements),
        is_inflated=False,
        has_constant_factor=False,
        is_repeated=False,
        is_emulated=False,
        is_in_costly_order=False,
        used=None,
        avoidable=work,
    )


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
        self.looked_up = one_hot_products(program)
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
        self.differs = differing_values(program) if program.devices > 1 else None
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
        self.time_ns = {name: total_ns(signals, [running.operations[name]]) for name in self.rows}
        self.emulated_share = {name: self._emulated_share(name) for name in self.rows}
        self.nonlinear_ns = {name: self._nonlinear_ns(name) for name in self.rows}
        self.is_known = {name: self._is_known(name) for name in self.rows}

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
        if row in self.looked_up:
            shape = self.program.shape_of(row)
            row_size = next((size for size in reversed(shape.dims) if size > 1), 1)
            rows_ns = _ROW_NS * shape.elements / row_size
            return _Product(flop, 0.0, max(rows_ns, _LEAST_OF_LOOK_UP * needed_ns))
        return _Product(flop, flop * share, needed_ns * share)

    def has_constant_factor(self, product: int) -> bool:
        """Whether a factor of a product depends on no data, such as a matrix of ones and zeros."""
        factors = (of for slot in (0, 1) for of in self.program.operands(product, slot))
        return any(
            self.program.shape_of(factor).elements > 1
            and self.program.largest_argument[factor] <= 1
            for factor in factors
        )

    def in_excess(self) -> Iterator[Excess]:
        """The parts that need much less than they take."""
        for part in dict.fromkeys(self._parts().values()):
            if (excess := self._excess(part)) is not None:
                yield excess

    def passes_over_arrays(self) -> Iterator[AvoidableWork]:
        """Operations that do the same with the same arrays, though none needs another's result.

        One operation on the inputs of all would read the arrays once.
        """
        together: dict[tuple[int, ...], list[frozenset[str]]] = defaultdict(list)
        for group in self._same_reads():
            of_group = (int(self.program.loop[self.rows[name][0]]) for name in group)
            together[tuple(sorted(of_group))].append(group)
        for loops, groups in together.items():
            names = frozenset[str]().union(*groups)
            apart_ns = sum(
                self._needs(frozenset((name,))).known_ns(self.bytes_per_s) for name in names
            )
            needs = [self._needs(group) for group in groups]
            share = sum(need.known_ns(self.bytes_per_s) for need in needs) / apart_ns
            time_ns = sum(need.time_ns for need in needs)
            if share <= _MOST_NEEDED:
                yield AvoidableWork(
                    running=self.running,
                    trips=float(len(loops)),
                    names=tuple(sorted(sorted(names), key=self.time_ns.__getitem__, reverse=True)),
                    time_ns=time_ns,
                    needed_ns=time_ns * share,
                    moved_bytes=sum(map(self._moved, sorted(names))),
                    border_bytes=sum(need.border_bytes for need in needs),
                    kind=Avoidable.PASSES,
                )

    def _same_reads(self) -> Iterator[frozenset[str]]:
        """Operations with the same work on the same large arguments, independent of one another."""
        least = _LEAST_ARRAY * self.signals.attribution.window_ns * self.bytes_per_s / NS_PER_S
        users = {row: self.program.users(row) for row in range(len(self.program))}
        grouped = set[str]()
        for source in np.flatnonzero(self.program.argument >= 0).tolist():
            alike: dict[object, list[str]] = defaultdict(list)
            for name in sorted(self.readers[source] - grouped):
                shared = self.reads[name][source]
                large = {
                    of
                    for of, size in self.reads[name].items()
                    if size >= _LARGE_INPUT * shared and self.program.argument[of] >= 0
                }
                if shared >= least and self.is_known[name]:
                    alike[frozenset(large), self._signature(name)].append(name)
            for names in alike.values():
                ends = {name: reached(self.rows[name], users) for name in names}
                is_free = all(
                    ends[one].isdisjoint(self.rows[other]) for one, other in permutations(names, 2)
                )
                if len(names) > 1 and is_free:
                    grouped |= set(names)
                    yield frozenset(names)

    def _signature(self, name: str) -> object:
        """What an operation computes: its products, or all values if it has none."""
        rows = self.rows[name]
        products = [row for row in rows if self.program.name_of(row) in PRODUCTS]
        return frozenset(
            Counter(
                (self.program.name_of(row), self.program.shape_of(row).dims)
                for row in (products or rows)
            ).items()
        )

    def _parts(self) -> dict[str, frozenset[str]]:
        """The part of each operation, joined along the arrays that cost most."""
        parts = {name: frozenset((name,)) for name in self.rows}
        for chain in self._chains():
            parts.update(dict.fromkeys(chain, chain))
        least = _LEAST_ARRAY * self.signals.attribution.window_ns * self.bytes_per_s / NS_PER_S
        moved = {
            source: self._written(source) + sum(self.reads[name][source] for name in readers)
            for source, readers in self.readers.items()
            if self.program.kernel_of(source) in parts and source not in self.results
        }
        for source in sorted(moved, key=lambda row: -moved[row]):
            if moved[source] < least:
                break
            names = (self.program.kernel_of(source), *sorted(self.readers[source]))
            apart = dict.fromkeys(parts[name] for name in names)
            joined = frozenset().union(*apart)
            if len(apart) > 1 and len(joined) <= _MOST_OPERATIONS:
                apart_ns = sum(self._needs(part).known_ns(self.bytes_per_s) for part in apart)
                together_ns = self._needs(joined).known_ns(self.bytes_per_s)
                if together_ns <= _LARGEST_REMAINDER * apart_ns:
                    parts.update(dict.fromkeys(joined, joined))
        return parts

    def _elements(self, row: int, moved: float) -> int:
        """Elements of the part of an array that is moved at a time, of `moved` bytes in all."""
        shape, count = self.program.shape_of(row), self.count.get(self.program.kernel_of(row), 1)
        whole = _stored_bytes(shape) * count
        return round(shape.elements * min(moved / whole, 1.0)) if whole else shape.elements

    def _chains(self) -> Iterator[frozenset[str]]:
        """Operations that write one array, a part each, or make a one-hot matrix and use it."""
        chain_of: dict[str, set[str]] = {name: {name} for name in self.rows}
        for name, rows in self.rows.items():
            for before in (before for row in rows for before in self._chained(row)):
                written_by = self.program.kernel_of(before)
                if written_by in chain_of and before not in self.results:
                    joined = chain_of[name] | chain_of[written_by]
                    chain_of.update(dict.fromkeys(joined, joined))
        chains = (frozenset(chain) for chain in chain_of.values() if len(chain) > 1)
        yield from dict.fromkeys(chains)

    def _chained(self, row: int) -> Iterator[int]:
        """The values that only exist for one that is computed from them."""
        if self.program.name_of(row) == "dynamic-update-slice":
            for before in map(self._source, self.program.operands(row, 0)):
                if self.program.name_of(before) == "dynamic-update-slice":
                    yield before
        elif row in self.looked_up or is_one_hot_matrix(self.program, row):
            for before in map(self._source, self.program.operands(row)):
                if is_one_hot_matrix(self.program, before):
                    yield before

    def _needs(self, part: frozenset[str]) -> _Needs:
        read: dict[int, float] = {}
        leaves: dict[int, float] = {}
        time_ns = product_ns = elements_ns = unknown_ns = 0.0
        for name in sorted(part):
            count, now_ns = self.count[name], self.time_ns[name]
            time_ns += now_ns
            unknown_ns += 0.0 if self.is_known[name] else now_ns
            for source, size in self.reads[name].items():
                if self.program.kernel_of(source) not in part:
                    read[source] = max(read.get(source, 0.0), size)
            elements_ns += self.nonlinear_ns[name] * count
            for row in self.rows[name]:
                if row in self.products:
                    product_ns += self.products[row].needed_ns * count
                if row in self.results:
                    leaves[row] = self._written(row)
                elif others := self.readers.get(row, part) - part:
                    # Of what is written, others may read a part.
                    read_later = sum(self.reads[other][row] for other in sorted(others))
                    leaves[row] = min(self._written(row), read_later)
        return _Needs(
            time_ns,
            sum(read.values()) + sum(leaves.values()),
            product_ns,
            elements_ns,
            unknown_ns,
            LEAST_NS * max(self.count[name] for name in part),
            max((self._elements(*each) for each in (*read.items(), *leaves.items())), default=1),
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
        elements_ns = sum(
            single_elements_ns(self.signals, self.program, row) * self.mapped_share.get(row, 1.0)
            for row in (rows if is_needed else nonlinear)
        )
        elements_ns *= 1 - self.emulated_share[name]
        return elements_ns if is_needed else max(elements_ns, self._product_instead_ns(rows))

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
        arithmetic = [row for row in self.rows[name] if self.program.name_of(row) not in _MOVES]
        sources = Counter(
            (self.program.paths.get(row, "").rstrip(":"), self.program.shape_of(row).dims)
            for row in arithmetic
        )
        surplus = sum(
            count - 1
            for (path, _), count in sources.items()
            if path.rpartition("/")[2] in _SIMPLE and count > _MANY
        )
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

    def _operation(self, name: str) -> XlaOperation:
        return self.running.operations[name]

    def _is_priced(self, row: int) -> bool:
        """Whether a gather takes a part that is known, or a custom call computes nothing.

        Such calls make room for an array, or check the indices of a gather.
        """
        name = self.program.name_of(row)
        if name == "custom-call" and self.program.operands(row):
            users = list(readers(self.program, row, (*SAME_ELEMENTS, "slice")))
            return all(self.program.name_of(user) == "gather" for user in users)
        return name != "gather" or takes_known_part(self.program, row)

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

    def _excess(self, part: frozenset[str]) -> Excess | None:
        needs = self._needs(part)
        rows = [row for name in sorted(part) for row in self.rows[name]]
        computed = [row for row in rows if self.program.name_of(row) not in FREE]
        if not computed or needs.unknown_ns > _MOST_UNKNOWN * needs.time_ns:
            return None
        largest = max(computed, key=lambda row: self.program.shape_of(row).elements)
        elements = self.program.shape_of(largest).elements
        products = [row for row in rows if row in self.products]
        flop, useful_flop = self._flop(products)
        emulated_ns = self._emulated_ns(part)
        excess = Excess(
            running=self.running,
            operations=tuple(
                map(self._operation, sorted(sorted(part), key=self._spare_ns, reverse=True))
            ),
            time_ns=needs.time_ns,
            needed_ns=needs.known_ns(self.bytes_per_s),
            moved_bytes=sum(map(self._moved, sorted(part))),
            border_bytes=needs.border_bytes,
            flop=flop,
            useful_flop=useful_flop,
            largest=largest,
            is_inflated=elements >= _INFLATED * max(needs.border_elements, 1),
            has_constant_factor=any(self.has_constant_factor(row) for row in products),
            is_repeated=any(row in self.repeated for row in products) or self._is_alike(part),
            is_emulated=emulated_ns > 0,
            is_in_costly_order=any(row in self.other_order for row in products),
            used=next((self.used[row] for row in products if row in self.used), None),
            is_look_up=not self.looked_up.isdisjoint(products),
        )
        if not (excess.is_explained or self._is_very_slow(excess, rows)):
            return None
        needed_ns = excess.needed_ns
        if excess.is_emulated:
            needed_ns = max(needed_ns, needs.time_ns - emulated_ns)
        if excess.is_repeated:  # each device would do its part
            needed_ns = min(needed_ns, needs.time_ns / self.program.devices)
        if needed_ns > _MOST_NEEDED * needs.time_ns:
            return None
        return replace(excess, needed_ns=needed_ns + needs.unknown_ns)

    def _is_very_slow(self, excess: Excess, rows: list[int]) -> bool:
        """Whether operations that compute something else than products need next to nothing."""
        only_moves = all(self.program.name_of(row) in _MOVES for row in rows)
        is_slow = excess.needed_ns <= _MOST_NEEDED_FLAT * excess.time_ns
        return is_slow and not (excess.flop or only_moves)

    def _flop(self, products: list[int]) -> tuple[float, float]:
        """The FLOP of products, and those that are useful."""
        counts = [self.count[self.program.kernel_of(row)] for row in products]
        found = [self.products[row] for row in products]
        return (
            sum(one.flop * count for one, count in zip(found, counts, strict=True)),
            sum(one.useful_flop * count for one, count in zip(found, counts, strict=True)),
        )

    def _emulated_ns(self, part: frozenset[str]) -> float:
        """What operations take for arithmetic that the source does not have; 0 if little."""
        if max(self.emulated_share[name] for name in part) <= _MOST_USEFUL:
            return 0.0
        return sum(self.emulated_share[name] * self.time_ns[name] for name in sorted(part))

    def _moved(self, name: str) -> float:
        """Bytes that an operation reads and writes."""
        leaving = (r for r in self.rows[name] if r in self.results or self.readers.get(r))
        return sum(self.reads[name].values()) + sum(map(self._written, leaving))

    def _is_alike(self, part: frozenset[str]) -> bool:
        """Whether all devices compute the same large arrays, the program's state aside."""
        rows = [row for name in sorted(part) for row in self.rows[name]]
        if self.differs is None or self.differs[rows].any() or self.results & set(rows):
            return False
        return max(self.program.shape_of(row).elements for row in rows) >= _LARGE

    def _spare_ns(self, name: str) -> float:
        """The time of an operation beyond that of its products."""
        products = (self.products[row] for row in self.rows[name] if row in self.products)
        needed_ns = self.count[name] * sum(product.needed_ns for product in products)
        return self.time_ns[name] - needed_ns


def _stored_bytes(shape: Shape) -> float:
    """Bytes of an array; those on the chip count little."""
    return shape.padded_bytes * (_ON_CHIP if shape.memory_space else 1.0)
