"""Branches that are all computed, because a select takes one of the results afterwards.

JAX turns a `cond` or a `switch` whose predicate differs between the elements of a `vmap` into
selects. `jnp.where` with a single condition computes both sides by definition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import SAME_ELEMENTS, Running, origin, running_programs
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.program import Program

_SELECT, _WHERE, _MAPPED = "/select_n", "jit(_where)", "vmap("
_COUNTING = (
    *("add", "and", "broadcast", "compare", "constant", "divide", "multiply", "not", "or"),
    *("parameter", "remainder", "select", "sign", "slice", "subtract", *SAME_ELEMENTS),
)
"""What decides on every n-th step: arithmetic on a counter. Random numbers need shifts, too."""
_MOST_COUNTING = 64


class Choice(NamedTuple):
    """A choice between results that have all been computed."""

    operations: tuple[XlaOperation, ...]
    """Those that compute results for the choice alone."""
    branches: int
    is_counted: bool
    """Whether a counter decides, such as the number of a step."""
    line: str


@memoized
def both_branches(signals: Signals) -> tuple[Choice, ...]:
    """The choices of the used window between results of which some are computed for them alone."""
    return tuple(found for running in running_programs(signals) for found in _choices(running))


def _choices(running: Running) -> Iterator[Choice]:
    program = running.program
    selects: dict[tuple[str, str], list[int]] = {}
    for row in program.rows_of(("select",)):
        path = program.paths.get(row, "")
        if path.endswith(_SELECT) and _is_of_wholes(program, row):
            selects.setdefault((path, program.lines.get(row, "")), []).append(row)
    for (path, line), rows in selects.items():
        is_counted = all(_is_counted(program, row) for row in rows)
        is_branch = _MAPPED in path and _WHERE not in path
        if not is_counted and not is_branch:
            continue
        alone = set[int]()
        for ends in _alternatives(program, rows):
            alone |= _only_for(program, ends)
        operations = _wholly_in(running, alone)
        if operations:
            yield Choice(operations, _depth(program, rows) + 1, is_counted, line)


def _is_of_wholes(program: Program, row: int) -> bool:
    """Whether a select takes all of a result, or all of each element of a batch."""
    (condition,) = program.operands(row, 0) or [row]
    while program.name_of(condition) in SAME_ELEMENTS:
        (condition,) = program.operands(condition, 0) or [row]
    if program.name_of(condition) != "broadcast":
        return not program.shape_of(row).dims
    spread = program.dimensions.get(condition, ())
    return spread == tuple(range(len(spread))) and len(spread) < len(program.shape_of(row).dims)


def _is_counted(program: Program, row: int) -> bool:
    """Whether the condition of a select is computed from counters and constants alone."""
    pending, seen = program.operands(row, 0), set[int]()
    counts = False
    while pending:
        row = pending.pop()
        if row in seen:
            continue
        seen.add(row)
        shape = program.shape_of(row)
        if program.name_of(row) not in _COUNTING or shape.dtype[0] not in "spu":
            return False
        if len(seen) > _MOST_COUNTING or (program.argument[row] >= 0 and shape.dims):
            return False
        counts |= bool(program.argument[row] >= 0)
        for slot in range(3):
            sources = program.operands(row, slot)
            # Of what a loop passes on, the trip before counts, and not where it begins.
            counters = [of for of in sources if _adds_to_itself(program, of)]
            counts |= bool(counters)
            pending += counters if len(sources) > 1 and counters else sources
    return counts


def _adds_to_itself(program: Program, row: int) -> bool:
    row = origin(program, row)
    return program.name_of(row) == "add" and _reaches(program, row)


def _reaches(program: Program, row: int) -> bool:
    """Whether a value is computed from itself, in the trip before."""
    pending, seen = program.operands(row), set[int]()
    while pending and len(seen) < _MOST_COUNTING:
        of = pending.pop()
        if of == row:
            return True
        if of not in seen:
            seen.add(of)
            pending += program.operands(of)
    return False


def _alternatives(program: Program, selects: list[int]) -> Iterable[list[tuple[int, int]]]:
    """What selects choose from: those of all results of a branch together, as edges."""
    chosen: dict[tuple[int, int], list[tuple[int, int]]] = {}
    members = set(selects)
    for row in selects:
        for slot in (1, 2):
            if not members & {origin(program, of) for of in program.operands(row, slot)}:
                depth = _depth(program, [row], members)
                chosen.setdefault((depth, slot), []).append((row, slot))
    return chosen.values()


def _depth(program: Program, selects: list[int], members: set[int] | None = None) -> int:
    """How many selects follow one another."""
    members = set(selects) if members is None else members
    frontier, depth = set(selects), 0
    while frontier and depth < len(members):
        depth += 1
        frontier = {
            source
            for row in frontier
            for slot in (1, 2)
            for of in program.operands(row, slot)
            for source in (origin(program, of),)
            if source in members and source != row
        }
    return depth


def _only_for(program: Program, ends: list[tuple[int, int]]) -> set[int]:
    """The values that are computed for some operands and nothing else."""
    found = set[int]()
    pending = [of for row, slot in ends for of in program.operands(row, slot)]
    while pending:
        row = pending.pop()
        if row not in found and program.argument[row] < 0 and not program.is_result[row]:
            found.add(row)
            pending += program.operands(row)
    allowed = set(ends)
    suspects = list(found)
    while suspects:
        row = suspects.pop()
        if row in found and not all(
            user in found or _reads_by(program, row, user) <= allowed for user in program.users(row)
        ):
            found.remove(row)
            suspects += program.operands(row)
    return found


def _reads_by(program: Program, row: int, user: int) -> set[tuple[int, int]]:
    return {(user, slot) for slot in range(3) if row in program.operands(user, slot)} or {(user, 0)}


def _wholly_in(running: Running, rows: set[int]) -> tuple[XlaOperation, ...]:
    """The operations that compute nothing but some values."""
    program = running.program
    computed = Counter(program.kernel_of(row) for row in rows)
    wanted = {
        name
        for name, count in Counter(map(program.kernel_of, range(len(program)))).items()
        if computed.get(name) == count
    }
    return tuple(o for name, o in running.operations.items() if name in wanted)
