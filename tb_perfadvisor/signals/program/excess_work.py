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
from collections.abc import Iterable, Iterator
from itertools import permutations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.devices import (
    LARGE,
    gathers_read_in_part,
)
from tb_perfadvisor.signals.program.graph import (
    FREE,
    PRODUCTS,
    Running,
    total_ns,
)
from tb_perfadvisor.signals.program.loop_work import (
    LEAST_NS,
    NEEDED_AT_BEST,
    Avoidable,
    AvoidableWork,
    loop_work,
)
from tb_perfadvisor.signals.program.loops import reached
from tb_perfadvisor.signals.program.moved_rows import is_one_hot_matrix
from tb_perfadvisor.signals.program.needed_work import MOVES, WorkOfOperations, work_of_programs
from tb_perfadvisor.signals.program.useful_work import (
    PartlyUsed,
)
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.units import NS_PER_S

_LARGEST_REMAINDER = 0.6
"""Operations are one part if together they need at most this share of what they need apart."""
_LARGEST_REMAINDER_INFLATED = 0.8
"""The same if the array between them is larger than any that crosses their border."""
_MOST_OPERATIONS = 60
"""Or groups of operations that belong together anyway."""
_LEAST_ARRAY = 0.002
"""Share of the window that moving an array has to take before operations are joined for it."""
_INFLATED = 2.0
"""How much larger an array inside is than any that crosses the border."""
_MOST_NEEDED = 0.7
_MOST_NEEDED_FLAT = 0.1
"""The same for parts without such an array."""
_MOST_STARTS = 0.25
"""What the operations of such a part take at least, however little they do."""
_MOST_USEFUL = 0.75
"""Of the FLOP of products in excess."""
_MOST_UNKNOWN = 0.3
_LEAST_OF_LINE = 0.01
"""Share of the window that an operation takes, so that a change is about its line."""
_BRINGS = MOVES | {"copy-done", "custom-call", "dynamic-update-slice", "pad", "slice-start"}
_LARGE_INPUT = 1 / 16
"""Of an array that operations share: if others are as large as this, they have to be the same."""


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
    has_repeated_rows: bool = False
    """Whether a product multiplies the same rows many times."""
    gathers_windows: bool = False
    """Whether numbers are gathered one by one that lie next to one another."""
    is_masked: bool = False
    """Whether a mask that depends on positions alone leaves out whole blocks of it."""
    is_divided: bool = False
    """Whether several products that could be one leave the matrix unit empty in part."""
    is_look_up: bool = False
    """Whether a product with a one-hot matrix looks rows up."""
    avoidable: AvoidableWork | None = None
    """Trips of a loop that could run at once, and other work that loops do twice."""
    unpriced_ns: float = 0.0
    """Of what is needed, the time of operations whose need is not known."""
    around: tuple[tuple[XlaOperation, float], ...] = ()
    """What only brings arrays to the part or away from it, what else is of its lines, and what else
    its loop reads in each trip; with the share of its time that goes at best with the excess."""

    @property
    def is_explained(self) -> bool:
        """Whether anything says why it takes longer than it needs."""
        return (
            self.is_inflated
            or self.is_repeated
            or self.is_emulated
            or self.gathers_windows
            or self.is_masked
            or self.is_divided
            or self.avoidable is not None
            or self.useful_flop < _MOST_USEFUL * self.flop
        )

    @property
    def least_ns(self) -> float:
        """What is needed at best: at the rates of the data sheet."""
        return NEEDED_AT_BEST * max(self.needed_ns - self.unpriced_ns, 0.0)

    @property
    def excess_ns(self) -> float:
        """The time beyond what is needed."""
        return self.time_ns - self.needed_ns


@memoized
def excess_work(signals: Signals) -> tuple[Excess, ...]:
    """The parts that do much more than they need, the largest excess first."""
    programs = [_Parts(work) for work in work_of_programs(signals)]
    found = [excess for parts in programs for excess in parts.in_excess()]
    found += [
        _of_work(work) for works in (loop_work, gathers_read_in_part) for work in works(signals)
    ]
    found += [_of_work(work) for parts in programs for work in parts.passes_over_arrays()]
    by_module = {parts.program.module: parts for parts in programs}
    chosen, claimed = [], set[int]()
    for excess in sorted(found, key=lambda excess: -excess.excess_ns):
        operations = {operation.op for operation in excess.operations}
        if not operations & claimed:
            chosen.append(by_module[excess.running.program.module].with_surroundings(excess))
            claimed |= operations
    return tuple(chosen)


def _of_work(work: AvoidableWork) -> Excess:
    """Work that is known to be avoidable, as a part of the program."""
    program = work.running.program
    names = work.running.with_waits(map(program.kernel_of, range(len(program))))
    rows = [row for row, name in enumerate(names) if name == work.names[0]]
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


class _Parts:
    """The parts of a program, by what their operations read, write and compute."""

    def __init__(self, work: WorkOfOperations) -> None:
        self.work = work
        self.signals, self.running, self.program = work.signals, work.running, work.program
        self.rows, self.time_ns, self.reads = work.rows, work.time_ns, work.reads
        self.bytes_per_s, self.readers, self.results = work.bytes_per_s, work.readers, work.results

    def in_excess(self) -> Iterator[Excess]:
        """The parts that need much less than they take."""
        for part in dict.fromkeys(self._parts().values()):
            if (excess := self._excess(part)) is not None:
                yield excess

    def with_surroundings(self, excess: Excess) -> Excess:
        """A part with the operations around it that change with it."""
        part = frozenset(operation.name for operation in excess.operations)
        around = self._of_same_lines(part) | self._that_move(part)
        operations = sorted(map(self._operation, around), key=lambda operation: operation.op)
        beside = excess.avoidable.least_shares if excess.avoidable is not None else {}
        gone = [
            (self._operation(name), 1 - beside[name]) for name in sorted(beside.keys() - around)
        ]
        time_ns = total_ns(self.signals, operations)
        if not time_ns:
            return replace(excess, around=tuple(gone))
        needs = self.work.needs((part | around) & self.rows.keys())
        least_ns = max(NEEDED_AT_BEST * needs.known_ns(self.bytes_per_s), excess.least_ns)
        gone_ns = time_ns - (least_ns - excess.least_ns)
        gone += [(operation, max(gone_ns / time_ns, 0.0)) for operation in operations]
        return replace(excess, around=tuple(gone))

    def _of_same_lines(self, part: frozenset[str]) -> frozenset[str]:
        """The other operations of the source lines from which most of a part's time comes."""
        lines = {
            line
            for name in part & self.rows.keys()
            if self.time_ns[name] >= _LEAST_OF_LINE * self.signals.attribution.window_ns
            and (line := self._line(name))
        }
        return frozenset(name for name in self.rows if self._line(name) in lines) - part

    def _line(self, name: str) -> str:
        """The source line of an operation; empty if it has none."""
        trace = self.signals.trace
        return trace.text(int(trace.hlo.source_line[self._operation(name).op]))

    def _that_move(self, part: frozenset[str]) -> frozenset[str]:
        """The operations that only bring arrays to a part, or away from it, others included."""
        program, found = self.program, set(part)
        moving = {
            name: rows
            for name, rows in self._rows_of_all().items()
            if name not in part and all(program.name_of(row) in _BRINGS for row in rows)
        }
        before = -1
        while before != len(found):
            before = len(found)
            for name, rows in moving.items():
                users = {program.kernel_of(u) for row in rows for u in program.users(row)} - {name}
                of = {
                    program.kernel_of(operand)
                    for row in rows
                    for operand in program.operands(row)
                    if program.name_of(operand) not in FREE
                } - {name}
                is_result = any(program.is_result[row] for row in rows)
                if (users <= found and not is_result) or (of and of <= found):
                    found.add(name)
        return frozenset(found - part)

    def _rows_of_all(self) -> dict[str, list[int]]:
        """The values of each operation, those that run beside others included."""
        rows = defaultdict[str, list[int]](list)
        for row in range(len(self.program)):
            if self.program.kernel_of(row) in self.running.operations:
                rows[self.program.kernel_of(row)].append(row)
        return rows

    def passes_over_arrays(self) -> Iterator[AvoidableWork]:
        """Operations that do the same with the same arrays, though none needs another's result.

        One operation on the inputs of all would read the arrays once.
        """
        together: dict[tuple[int, ...], list[frozenset[str]]] = defaultdict(list)
        for group in self._same_reads():
            of_group = (int(self.program.loop[self.rows[name][0]]) for name in group)
            together[tuple(sorted(of_group))].append(group)
        for loops, groups in together.items():
            names = sorted(frozenset[str]().union(*groups))
            apart_ns = sum(
                self.work.needs(frozenset((name,))).known_ns(self.bytes_per_s) for name in names
            )
            needs = [self.work.needs(group) for group in groups]
            share = sum(need.known_ns(self.bytes_per_s) for need in needs) / apart_ns
            time_ns = sum(need.time_ns for need in needs)
            if share <= _MOST_NEEDED:
                yield AvoidableWork(
                    running=self.running,
                    trips=float(len(loops)),
                    names=tuple(sorted(names, key=self.time_ns.__getitem__, reverse=True)),
                    time_ns=time_ns,
                    needed_ns=time_ns * share,
                    moved_bytes=sum(map(self.work.moved, names)),
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
                if shared >= least and self.work.is_known[name]:
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
        for together in self._lines():
            joined = frozenset().union(*(parts[name] for name in together))
            if self._share_together(joined, {parts[name] for name in joined}) <= _LARGEST_REMAINDER:
                parts.update(dict.fromkeys(joined, joined))
        units = dict(parts)
        least = _LEAST_ARRAY * self.signals.attribution.window_ns * self.bytes_per_s / NS_PER_S
        moved = {
            source: self.work.written(source) + sum(self.reads[name][source] for name in readers)
            for source, readers in self.readers.items()
            if self.program.kernel_of(source) in parts and source not in self.results
        }
        for source in sorted(moved, key=lambda row: -moved[row]):
            if moved[source] < least:
                break
            names = (self.program.kernel_of(source), *sorted(self.readers[source]))
            apart = {parts[name] for name in names}
            joined = frozenset().union(*apart)
            is_small = len({units[name] for name in joined}) <= _MOST_OPERATIONS
            if len(apart) > 1 and is_small:
                elements = self.program.shape_of(source).elements
                is_largest = elements >= _INFLATED * self.work.needs(joined).border_elements
                limit = _LARGEST_REMAINDER_INFLATED if is_largest else _LARGEST_REMAINDER
                if self._share_together(joined, apart) <= limit:
                    parts.update(dict.fromkeys(joined, joined))
        return parts

    def _share_together(self, joined: frozenset[str], apart: Iterable[frozenset[str]]) -> float:
        """What operations need together, relative to what some groups of them need."""
        apart_ns = sum(
            self.work.needs(part).known_ns(self.bytes_per_s) for part in sorted(apart, key=min)
        )
        return self.work.needs(joined).known_ns(self.bytes_per_s) / max(apart_ns, 1.0)

    def _lines(self) -> Iterator[list[str]]:
        """The operations of each source line whose need is known, such as those of a scan."""
        lines = defaultdict[tuple[str, bool], list[str]](list)
        for name in self.rows:
            if self.work.is_known[name] and (line := self._line(name)):
                lines[line, self._is_alike(frozenset((name,)))].append(name)
        yield from (names for names in lines.values() if len(names) > 1)

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
            for before in map(self.work.source, self.program.operands(row, 0)):
                if self.program.name_of(before) == "dynamic-update-slice":
                    yield before
        elif row in self.work.looked_up or is_one_hot_matrix(self.program, row):
            for before in map(self.work.source, self.program.operands(row)):
                if is_one_hot_matrix(self.program, before):
                    yield before

    def _operation(self, name: str) -> XlaOperation:
        return self.running.operations[name]

    def _excess(self, part: frozenset[str]) -> Excess | None:
        needs = self.work.needs(part)
        rows = [row for name in sorted(part) for row in self.rows[name]]
        computed = [row for row in rows if self.program.name_of(row) not in FREE]
        if not computed or needs.unknown_ns > _MOST_UNKNOWN * needs.time_ns:
            return None
        largest = max(
            computed,
            key=lambda row: (self.program.shape_of(row).elements, not self._is_needed_inside(row)),
        )
        elements = self.program.shape_of(largest).elements
        products = [row for row in rows if row in self.work.products]
        flop, useful_flop = self._flop(products)
        emulated_ns = self._emulated_ns(part)
        excess = Excess(
            running=self.running,
            operations=tuple(
                map(self._operation, sorted(sorted(part), key=self._spare_ns, reverse=True))
            ),
            time_ns=needs.time_ns,
            needed_ns=needs.known_ns(self.bytes_per_s),
            moved_bytes=sum(map(self.work.moved, sorted(part))),
            border_bytes=needs.border_bytes,
            flop=flop,
            useful_flop=useful_flop,
            largest=largest,
            is_inflated=(
                elements >= _INFLATED * max(needs.border_elements, 1)
                and not self._is_needed_inside(largest)
            ),
            has_constant_factor=any(self.work.has_constant_factor(row) for row in products),
            is_repeated=any(row in self.work.repeated for row in products) or self._is_alike(part),
            is_emulated=emulated_ns > 0,
            is_in_costly_order=any(row in self.work.other_order for row in products),
            used=next((self.work.used[row] for row in products if row in self.work.used), None),
            has_repeated_rows=not self.work.repeats.keys().isdisjoint(products),
            gathers_windows=not self.work.windows.keys().isdisjoint(rows),
            is_masked=not self.work.masked.isdisjoint(rows),
            is_divided=not self.work.divided.keys().isdisjoint(products),
            is_look_up=not self.work.looked_up.isdisjoint(products),
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
        return replace(excess, needed_ns=needed_ns + needs.unknown_ns, unpriced_ns=needs.unknown_ns)

    def _is_needed_inside(self, row: int) -> bool:
        """Whether an array never leaves its operation, which needs all of its elements."""
        leaves = row in self.results or bool(self.readers.get(row))
        return not leaves and self.work.maps_largest[self.program.kernel_of(row)]

    def _is_very_slow(self, excess: Excess, rows: list[int]) -> bool:
        """Whether operations that compute something else than products need next to nothing."""
        only_moves = all(self.program.name_of(row) in MOVES for row in rows)
        # However little they do, each of many small operations takes some time.
        least_ns = sum(LEAST_NS * self.work.count[each.name] for each in excess.operations)
        is_slow = excess.needed_ns <= _MOST_NEEDED_FLAT * excess.time_ns
        is_slow &= least_ns <= _MOST_STARTS * excess.time_ns
        return is_slow and not (excess.flop or only_moves)

    def _flop(self, products: list[int]) -> tuple[float, float]:
        """The FLOP of products, and those that are useful."""
        counts = [self.work.count[self.program.kernel_of(row)] for row in products]
        found = [self.work.products[row] for row in products]
        return (
            sum(one.flop * count for one, count in zip(found, counts, strict=True)),
            sum(one.useful_flop * count for one, count in zip(found, counts, strict=True)),
        )

    def _emulated_ns(self, part: frozenset[str]) -> float:
        """What operations take for arithmetic that the source does not have; 0 if little."""
        if max(self.work.emulated_share[name] for name in part) <= _MOST_USEFUL:
            return 0.0
        return sum(self.work.emulated_share[name] * self.time_ns[name] for name in sorted(part))

    def _is_alike(self, part: frozenset[str]) -> bool:
        """Whether all devices compute the same large arrays, the program's state aside."""
        rows = [row for name in sorted(part) for row in self.rows[name]]
        if self.work.differs is None or self.work.differs[rows].any() or self.results & set(rows):
            return False
        return max(self.program.shape_of(row).elements for row in rows) >= LARGE

    def _spare_ns(self, name: str) -> float:
        """The time of an operation beyond that of its products."""
        products = (self.work.products[row] for row in self.rows[name] if row in self.work.products)
        needed_ns = self.work.count[name] * sum(product.needed_ns for product in products)
        return self.time_ns[name] - needed_ns
