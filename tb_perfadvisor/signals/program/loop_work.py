"""What the operations of a loop would take if all trips ran at once.

A trip multiplies few rows, and reads the same weights as the trip before. One product of the rows
of all trips reads them once, and fills the matrix unit. In return, what the trips exchange with the
rest of the loop goes through the device's memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from enum import Enum

from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import (
    FREE,
    PRODUCTS,
    SAME_ELEMENTS,
    Running,
    arithmetic_ns,
    count_of,
    origin,
    readers,
    running_programs,
    single_elements_ns,
    total_ns,
)
from tb_perfadvisor.signals.program.loops import (
    LoopValues,
    loops_of,
    reached,
)
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import achievable_bandwidth
from tb_perfadvisor.signals.tpu.product_time import flop_time_ns, least_product_ns
from tb_perfadvisor.trace.hlo_text import parse_instruction
from tb_perfadvisor.units import NS_PER_S

LEAST_NS = 1000.0
"""What an operation takes, however small it is."""
NEEDED_AT_BEST = 0.5
"""Share of what is needed: at the rates of the data sheet, and as its surroundings get faster."""
_MOVES = frozenset(
    (*SAME_ELEMENTS, *FREE, "dynamic-slice", "dynamic-update-slice", "slice", "add", "compare")
)
_OF_PRODUCTS = frozenset(
    (*SAME_ELEMENTS, *FREE, "add", "dynamic-slice", "multiply", "reduce", "select", "slice")
)
EXCHANGES = ("all-", "collective-", "reduce-scatter")
_REDUCTIONS = ("all-reduce", "all-reduce-start", "reduce-scatter")
_TAKES = ("slice", "dynamic-slice")
_LARGEST_SHARE_OF_MEMORY = 0.25
"""What arrays of all trips may take of a device's memory."""

_ROOM_ON_CHIP = 32 << 20
"""Bytes: a quarter of the memory that v5e and v6e have for vectors, and half of a v5p's."""


class Avoidable(Enum):
    """Why operations do more than they need."""

    WHOLE = "no trip depends on the one before in anything"
    PART = "something that each trip does could be done for all trips at once"
    SUMS = "what trips add up is summed over the devices in each trip"
    GATHERED = "each device reads a part of what all of them gather"
    PASSES = "several passes read the same array, though none needs another's result"


class AvoidableWork(Struct, frozen=True):
    """Operations that do more than they need, mostly in loops; sums over the used window."""

    running: Running
    trips: float
    """Of the loop, passes over the array, or devices."""
    names: tuple[str, ...]
    """The operation that would gain most first."""
    time_ns: float
    needed_ns: float
    moved_bytes: float
    border_bytes: float
    """What they would move instead."""
    kind: Avoidable
    least_shares: Mapping[str, float] = {}
    """Of other operations of the loop, what remains if the arrays that each trip reads again stay
    on the chip, where room is for them once the rest is gone."""


@memoized
def loop_work(signals: Signals) -> tuple[AvoidableWork, ...]:
    """The loops with operations that would be faster for all trips at once."""
    bytes_per_s = achievable_bandwidth(signals)
    if bytes_per_s is None:
        return ()
    found = []
    for running in running_programs(signals):
        loops = loops_of(running.program)
        serial = frozenset().union(*(loop.serial for loop in loops))
        for values in loops:
            loop = _Loop(signals, running, values, serial, bytes_per_s)
            works = loop.work(), loop.summed_in_each_trip()
            found += [work for work in works if work is not None]
    return tuple(found)


class _Loop:
    """The operations of a loop, and what they would take at once."""

    def __init__(
        self,
        signals: Signals,
        running: Running,
        values: LoopValues,
        serial: frozenset[int],
        bytes_per_s: float,
    ) -> None:
        self.signals, self.running, self.values = signals, running, values
        self.bytes_per_s = bytes_per_s
        program = self.program = running.program
        self.trips = program.loops[values.loop].trips
        self.rows: dict[str, list[int]] = defaultdict(list)
        rows = sorted(values.rows)
        # What starts beside others takes the time in which something waits for it.
        names = running.with_waits(map(program.kernel_of, rows))
        self.name_of = dict(zip(rows, names, strict=True))
        for row, name in self.name_of.items():
            if program.loop[row] == values.loop and name in running.operations:
                self.rows[name].append(row)
        # Arrays that one loop or another computes trip by trip.
        users = {row: program.users(row) for row in range(len(program))}
        self.of_trips = reached(serial, users)
        self.serial_weights = {
            tuple(sorted(program.shape_of(of).dims))
            for row in serial
            if program.name_of(row) in PRODUCTS
            for of in program.operands(row)
            if of not in self.of_trips
        }

    def work(self) -> AvoidableWork | None:
        """What would be faster at once; None if nothing would."""
        now = {name: total_ns(self.signals, [self.running.operations[name]]) for name in self.rows}
        then = {name: at_once for name in self.rows if (at_once := self._at_once(name)) is not None}
        faster = {
            name: min(ns, now[name])
            for name, ns in then.items()
            if ns < now[name] and (not self._only_moves(name) or self._is_brought_again(name))
        }
        if not faster or not self._fit(faster):
            return None
        faster.update(self._moves_between(set(faster)))
        names = sorted(faster, key=lambda name: faster[name] - now[name])
        if self.values.is_free:  # the lines of the loop before those of its body
            names.sort(key=lambda name: not self._takes_part(name))
        return AvoidableWork(
            running=self.running,
            trips=self.trips,
            names=tuple(names),
            time_ns=sum(now[name] for name in names),
            needed_ns=sum(faster.values()),
            moved_bytes=sum(self._bytes(name, at_once=False) * self._count(name) for name in names),
            border_bytes=sum(self._bytes(name) * self._count(name) / self.trips for name in names),
            kind=Avoidable.WHOLE if self.values.is_free else Avoidable.PART,
            least_shares=self._on_chip(self.rows.keys() - names),
        )

    def _on_chip(self, names: Set[str]) -> dict[str, float]:
        """The shares that remain of operations if they read what no trip changes on the chip."""
        again = {
            name: {
                of: self._size(of, at_once=False)
                for row in self.rows[name]
                for of in self.program.operands(row)
                if of not in self.values.varying and self.name_of.get(of) != name
            }
            for name in names
        }
        sizes = {of: size for read in again.values() for of, size in read.items()}
        if sum(sizes.values()) > _ROOM_ON_CHIP:
            return {}
        shares = {}
        for name, read in again.items():
            now_ns = total_ns(self.signals, [self.running.operations[name]]) / self._count(name)
            least_ns = arithmetic_ns(self.signals, self.program, self.rows[name])
            if any(read.values()) and now_ns and least_ns is not None:
                read_ns = sum(read.values()) / self.bytes_per_s * NS_PER_S
                shares[name] = min(max(now_ns - read_ns, NEEDED_AT_BEST * least_ns) / now_ns, 1.0)
        return shares

    def summed_in_each_trip(self) -> AvoidableWork | None:
        """Sums over the devices of what the loop adds up: the sum could be reduced once.

        Then nothing stands between the products and their sum, so that one operation does both.
        """
        once, gone = dict[str, None](), dict[str, None]()
        for row in self.program.rows_of(_REDUCTIONS):
            adding = self._adding(row) if row in self.values.rows else set()
            if adding:
                once[self.name_of[row]] = None
                gone |= {name: None for name in self.rows if self._only_adds(name, adding)}
        names = [*once, *gone]
        if not names:
            return None
        now = {name: total_ns(self.signals, [self.running.operations[name]]) for name in names}
        moved = sum(self._bytes(name, at_once=False) * self._count(name) for name in once)
        return AvoidableWork(
            running=self.running,
            trips=self.trips,
            names=tuple(sorted(names, key=lambda name: -now[name])),
            time_ns=sum(now.values()),
            needed_ns=sum(0.0 if name in gone else now[name] / self.trips for name in names),
            moved_bytes=moved,
            border_bytes=moved / self.trips,
            kind=Avoidable.SUMS,
        )

    def _adding(self, reduction: int) -> set[int]:
        """What leads from a reduction to sums over the trips; nothing if it is read otherwise."""
        found, pending = set[int](), [reduction]
        while pending:
            of = pending.pop()
            for user in self.program.users(of):
                is_read = bool(self.program.users(user)) or self.program.is_result[user]
                if user in found or not is_read:
                    continue
                if user not in self.values.summed:
                    if not self._is_scaled(user, of):
                        return set()
                    pending.append(user)
                found.add(user)
        return found | self.values.summed if found else found

    def _is_scaled(self, user: int, of: int) -> bool:
        """Whether a value of the loop is another one, moved or times a number."""
        name = self.program.name_of(user)
        if user in self.values.serial or user not in self.values.rows:
            return False
        if name in SAME_ELEMENTS:
            return not self.program.is_result[user]
        through = (*SAME_ELEMENTS, "broadcast")
        others = [other for other in self.program.operands(user) if other != of]
        return (
            (name == "multiply" or (name == "divide" and of in self.program.operands(user, 0)))
            and len(others) == 1
            and self.program.shape_of(origin(self.program, others[0], through)).elements == 1
        )

    def _only_adds(self, name: str, adding: set[int]) -> bool:
        """Whether an operation only adds up, or moves what others add up."""
        rows = {row for row in self.rows[name] if self.program.name_of(row) not in FREE}
        return bool(rows) and rows <= adding

    def _count(self, name: str) -> float:
        return count_of(self.signals, self.running.operations[name])

    def _only_moves(self, name: str) -> bool:
        return all(self.program.name_of(row) in _MOVES for row in self.rows[name])

    def _is_brought_again(self, name: str) -> bool:
        """Whether each trip, though independent, waits for an array that is the same in all."""
        rows = self.rows[name]
        is_copied = all(self.program.name_of(row) == "copy-start" for row in rows)
        return is_copied and self.values.is_free and not self.values.varying & set(rows)

    def _takes_part(self, name: str) -> bool:
        """Whether an operation only takes the part of a trip out of an array, or puts it in."""
        parts = ("dynamic-slice", "dynamic-update-slice")
        is_part = any(self.program.name_of(row) in parts for row in self.rows[name])
        return is_part and self._only_moves(name)

    def _at_once(self, name: str) -> float | None:
        """What an operation would take in the window; None if it would be no other work."""
        rows, runs = self.rows[name], self._count(name) / self.trips
        if self.values.serial & set(rows) or any(map(self._is_exchange, rows)):
            return None
        if not self.values.varying & set(rows):  # once instead of in each trip
            return total_ns(self.signals, [self.running.operations[name]]) / self.trips
        if not self.values.is_free and not self._shares(rows):
            return None
        work_ns = arithmetic_ns(self.signals, self.program, rows)
        products = [row for row in rows if self.program.name_of(row) in PRODUCTS]
        if work_ns is None or any(self._stays(row) for row in products):
            return None
        bytes_ns = self._bytes(name, at_once=False) / self.bytes_per_s * NS_PER_S
        need_ns = max(work_ns, bytes_ns, LEAST_NS)
        products_ns = 0.0
        for row in products:
            product = parse_instruction(self.program.texts.get(row, ""))
            product_ns = least_product_ns(self.signals, product) if product is not None else None
            if product_ns is None:
                return None
            products_ns += max(product_ns, 0.0 if self._shares_factor(row) else work_ns)
        is_written_out = self._is_written_out(rows)
        elements_ns = sum(
            single_elements_ns(self.signals, self.program, row)
            * (1.0 if self._is_once(row) else self.trips)
            for row in rows
            if not is_written_out or row not in self.values.varying
        )
        if is_written_out:
            elements = max(self.program.shape_of(row).elements for row in rows)
            elements_ns += flop_time_ns(self.signals, 2.0 * elements * self.trips) or 0.0
        took_ns = total_ns(self.signals, [self.running.operations[name]]) / self._count(name)
        then_ns = max(
            products_ns * self.trips,
            elements_ns * min(took_ns / need_ns, 1.0),  # XLA may need less than one at a time
            self._bytes(name) / self.bytes_per_s * NS_PER_S,
            LEAST_NS,
        )
        # An operation that is slower than its arithmetic and bytes say stays so.
        return then_ns * runs * max(took_ns / need_ns, 1.0)

    def _is_exchange(self, row: int) -> bool:
        return self.program.name_of(row).startswith(EXCHANGES)

    def _shares(self, rows: list[int]) -> bool:
        """Whether all trips read the same array, or add up to one."""
        products = (row for row in rows if self.program.name_of(row) in PRODUCTS)
        return self._is_written_out(rows) or any(map(self._shares_factor, products))

    def _is_written_out(self, rows: list[int]) -> bool:
        """Whether an operation is a product of a vector that XLA computes on single elements.

        The vectors of all trips make a matrix. What makes the other factor, which is the same in
        all trips, may be anything.
        """
        changing = [row for row in rows if row in self.values.varying]
        if any(self.program.name_of(row) not in _OF_PRODUCTS for row in changing):
            return False
        is_sum = any(self.program.name_of(r) == "reduce" or r in self.values.summed for r in rows)
        through = (*SAME_ELEMENTS, "broadcast")
        return is_sum and any(
            self.program.shape_of(of).elements > 1
            and (of not in self.values.varying or bool(self.values.summed & set(rows)))
            for row in changing
            if self.program.name_of(row) == "multiply"
            for factor in self.program.operands(row)
            for of in (origin(self.program, factor, through),)
        )

    def _shares_factor(self, product: int) -> bool:
        """Whether all trips multiply by the same array, or the sum of their products is used."""
        is_same = any(of not in self.values.varying for of in self.program.operands(product))
        sums = (self.values.summed & {user} for user in readers(self.program, product))
        return is_same or any(sums)

    def _is_once(self, row: int) -> bool:
        """Whether a value is computed once at once: it is the same in all trips, or a sum."""
        if row not in self.values.varying or row in self.values.summed:
            return True
        is_moved = self.program.name_of(row) in SAME_ELEMENTS
        return is_moved and all(map(self._is_once, self.program.users(row)))

    def _stays(self, product: int) -> bool:
        """Whether a product is a gradient of weights by which the loop multiplies in turn.

        It could be computed after the loop, but gradients are where the product is.
        """
        if product not in self.values.after:
            return False
        dims = tuple(sorted(self.program.shape_of(product).dims))
        factors = self.program.operands(product)
        return dims in self.serial_weights and all(of in self.of_trips for of in factors)

    def _bytes(self, name: str, *, at_once: bool = True) -> float:
        """Bytes that one trip moves, or all of them at once.

        Arrays on the chip count in neither. At once, arrays of all trips are in memory.
        """
        inside = set(self.rows[name])
        trips = self.trips if at_once else 1.0
        read: dict[int, float] = {}
        written = 0.0
        for row in self.rows[name]:
            for of in self.program.operands(row):
                if of not in inside and of not in self.values.summed:
                    size = self._read(row, of, at_once=at_once)
                    read[of] = max(read.get(of, 0.0), size)
            is_read = any(user not in inside for user in self.program.users(row))
            if row in self.values.summed or not (is_read or self.program.is_result[row]):
                continue
            if self.program.name_of(row) == "dynamic-update-slice":
                sizes = [self._size(of, at_once) for of in self.program.operands(row, 1)]
                written += trips * sum(sizes)
            else:
                is_same = row not in self.values.varying
                written += (1.0 if is_same else trips) * self._size(row, at_once)
        # Each trip reads a sum and writes it.
        sums = [self._size(row, at_once) for row in inside & self.values.summed]
        return sum(read.values()) + written + max(sums, default=0.0) * (1.0 if at_once else 2.0)

    def _read(self, row: int, of: int, *, at_once: bool) -> float:
        """Bytes of an operand that a value reads in one trip, or in all of them."""
        trips = self.trips if at_once else 1.0
        if of in self.program.operands(row, 0):
            if self.program.name_of(row) in _TAKES:
                return trips * self._size(row, at_once)
            if self.program.name_of(row) == "dynamic-update-slice":
                return 0.0
        size = self._size(of, at_once)
        if of not in self.values.varying:
            return size
        # What the rest of the loop computes is written for all trips, too.
        return size * trips * (2.0 if at_once and of in self.values.after else 1.0)

    def _size(self, row: int, at_once: bool) -> float:
        shape = self.program.shape_of(row)
        return 0.0 if shape.memory_space and not at_once else float(shape.padded_bytes)

    def _fit(self, names: dict[str, float]) -> bool:
        """Whether the arrays of all trips fit into the device's memory."""
        facts = self.signals.device_facts
        memory_bytes = facts.memory_bytes if facts is not None else None
        whole = sum(map(self._bytes, names))
        return memory_bytes is None or whole <= _LARGEST_SHARE_OF_MEMORY * memory_bytes

    def _moves_between(self, faster: set[str]) -> Iterator[tuple[str, float]]:
        """The operations that only move what the faster ones read or write, which go."""
        for name, rows in self.rows.items():
            if name in faster or not self._only_moves(name) or self.values.serial & set(rows):
                continue
            beside = {
                self.name_of[other]
                for row in rows
                for other in self.program.users(row)
                if other in self.name_of
            } - {name}
            if self.values.is_free or (beside and beside <= faster):
                yield name, 0.0
