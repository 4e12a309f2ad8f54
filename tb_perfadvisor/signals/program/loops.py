"""Which values of a loop need one trip after the other, and which could be computed at once.

A value needs the trip before if it depends on itself: the state of a simulation, of a recurrent
layer or of a decoder. What is on no such cycle can be taken out of the loop, before it or after it,
for all trips at once. That is loop distribution (Allen and Kennedy, "Optimizing compilers for
modern architectures", 2001). Cycles that count, that add up, or that write one part of an array
after the other keep no trip waiting. This is also so if trips read what was written before, such as
keys of earlier tokens, as long as nothing that is read decides what is written to the same array.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from tb_perfadvisor.signals.program.graph import MOVES
from tb_perfadvisor.trace.program import Program

_PASSED_ON = frozenset((*MOVES, "convert", "select"))
_SUMS = _PASSED_ON | {"add", "maximum", "minimum"}
_HISTORIES = frozenset((*MOVES, "dynamic-update-slice"))
_BUFFERS = _PASSED_ON | {"dynamic-update-slice"}


class LoopValues(Struct, frozen=True):
    """What the values of a loop depend on, by row of the program."""

    loop: int
    """Index into the program's loops."""
    rows: frozenset[int]
    """What each trip computes, also in loops inside."""
    serial: frozenset[int]
    """What depends on itself in the trip before."""
    summed: frozenset[int]
    """What adds up a value of each trip."""
    varying: frozenset[int]
    """What differs from trip to trip, other than by the parts that were written already."""
    after: frozenset[int]
    """What depends on a serial value."""

    @property
    def is_free(self) -> bool:
        """Whether all trips could run at once."""
        return not self.serial


def loops_of(program: Program) -> tuple[LoopValues, ...]:
    """The loops of a program whose trips are known, and what their values depend on."""
    inside: dict[int, set[int]] = defaultdict(set)
    for row, number in enumerate(program.loop.tolist()):
        loop = number
        while loop >= 0:
            inside[loop].add(row)
            loop = program.loops[loop].parent
    return tuple(
        _values_of(program, loop, rows)
        for loop, rows in sorted(inside.items())
        if program.loops[loop].trips > 1
    )


def _values_of(program: Program, loop: int, rows: set[int]) -> LoopValues:
    reads = {row: [of for of in program.operands(row) if of in rows] for row in sorted(rows)}
    users: dict[int, list[int]] = {row: [] for row in reads}
    for row, operands in reads.items():
        for of in operands:
            users[of].append(row)
    serial, summed, cyclic, history = set[int](), set[int](), set[int](), set[int]()
    for cycle in cycles(reads):
        if all(program.name_of(row) in MOVES for row in cycle):
            continue  # passed on as it is
        cyclic |= cycle
        is_number = all(program.shape_of(row).elements <= 1 for row in cycle)
        is_read = any(
            _is_read(program, user) for row in cycle for user in users[row] if user not in cycle
        )
        if not is_read and _passes_on(program, cycle, _SUMS, cycle):
            summed |= cycle
        elif is_read and _passes_on(program, cycle, _HISTORIES, cycle):
            history |= cycle
        elif not is_number and (is_read or not _passes_on(program, cycle, _BUFFERS, cycle)):
            serial |= cycle
    return LoopValues(
        loop=loop,
        rows=frozenset(rows),
        serial=frozenset(serial),
        summed=frozenset(summed),
        varying=reached(cyclic, users) - history,
        after=reached(serial, users),
    )


def _is_read(program: Program, row: int) -> bool:
    """Whether anything needs a value; slices that prefetch a part have no reader of their own."""
    return bool(program.users(row) or program.is_result[row])


def _passes_on(
    program: Program, cycle: set[int], opcodes: frozenset[str], within: set[int]
) -> bool:
    """Whether each value of a cycle takes in the one before as it is, in one place only."""
    for row in cycle:
        name = program.name_of(row)
        slots = {
            slot for slot in range(3) if any(of in within for of in program.operands(row, slot))
        }
        if name not in opcodes or len(slots) != 1:
            return False
        if (name == "select" and 0 in slots) or (name == "dynamic-update-slice" and 0 not in slots):
            return False
    return True


def reached(begin: Iterable[int], along: Mapping[int, Sequence[int]]) -> frozenset[int]:
    """Some nodes of a graph, and all that can be reached from them."""
    pending = list(begin)
    seen = set(pending)
    while pending:
        new = [node for node in along[pending.pop()] if node not in seen]
        seen.update(new)
        pending += new
    return frozenset(seen)


def cycles(reads: Mapping[int, Sequence[int]]) -> list[set[int]]:
    """Nodes of a graph that can be reached from one another; nodes on no cycle are left out.

    Strongly connected components (Tarjan, 1972), without recursion.
    """
    index: dict[int, int] = {}
    lowest: dict[int, int] = {}
    stack: list[int] = []
    on_stack = set[int]()
    found = []
    for begin in reads:
        pending = [] if begin in index else [(begin, iter(reads[begin]))]
        while pending:
            node, rest = pending[-1]
            if node not in index:
                index[node] = lowest[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            for of in rest:
                if of not in index:
                    pending.append((of, iter(reads[of])))
                    break
                if of in on_stack:
                    lowest[node] = min(lowest[node], lowest[of])
            else:
                pending.pop()
                if pending:
                    above = pending[-1][0]
                    lowest[above] = min(lowest[above], lowest[node])
                if lowest[node] == index[node]:
                    component = set(stack[stack.index(node) :])
                    del stack[stack.index(node) :]
                    on_stack -= component
                    if len(component) > 1 or node in reads[node]:
                        found.append(component)
    return found
