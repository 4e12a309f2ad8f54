"""Operations that compute the same in every run, because constants are all that they read.

XLA computes small expressions of constants while it compiles. Factorizations, sorts, loops and
large arrays are left to each run of the program.
"""

from __future__ import annotations

from collections import defaultdict

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import SAME_ELEMENTS, Running, running_programs
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.program import Program

_FROM_OUTSIDE = frozenset({"parameter", "infeed", "recv", "recv-done", "rng"})
"""Their results differ from run to run."""
_CHEAP = frozenset({*SAME_ELEMENTS, "broadcast", "constant", "iota", "partition-id", "replica-id"})
"""These cost no more than reading their result."""
_CALLBACK = "callback"
_LOOP = "while"


@memoized
def fixed_operations(signals: Signals) -> tuple[XlaOperation, ...]:
    """The operations of the used window that read nothing but constants."""
    found: list[XlaOperation] = []
    for running in running_programs(signals):
        rows = _fixed_rows(running)
        fixed = running.of(rows)
        loops = _loops_of(running, fixed)
        # What counts the trips of a loop goes only with the loop.
        alone = {o.op for o in running.of(row for row in rows if running.program.runs[row] == 1)}
        inside = tuple(f"{loop.path}/" for loop in loops)
        found += [o for o in fixed if o.op in alone or o.path.startswith(inside)]
        found += loops
    return tuple(found)


def _loops_of(running: Running, fixed: list[XlaOperation]) -> list[XlaOperation]:
    """The loops that consist of such operations, by the framework's names for what is inside.

    Starting each trip takes a loop some time, too.
    """
    varying = [o.path for o in running.operations.values() if o not in fixed and o.opcode != _LOOP]
    return [
        loop
        for loop in running.operations.values()
        if loop.opcode == _LOOP
        and any(one.path.startswith(f"{loop.path}/") for one in fixed)
        and not any(path.startswith(f"{loop.path}/") for path in varying)
    ]


def _fixed_rows(running: Running) -> list[int]:
    """The values of operations all of whose values are the same in every run."""
    program = running.program
    varying = _varying(program)
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row in range(len(program)):
        rows_of[program.kernel_of(row)].append(row)
    return [
        rows[0]
        for rows in rows_of.values()
        if varying.isdisjoint(rows) and any(program.name_of(row) not in _CHEAP for row in rows)
    ]


def _varying(program: Program) -> set[int]:
    """The values that depend on an argument, or on what else comes from outside."""
    found = {row for row in range(len(program)) if _is_from_outside(program, row)}
    pending = list(found)
    while pending:
        for user in program.users(pending.pop()):
            if user not in found:
                found.add(user)
                pending.append(user)
    return found


def _is_from_outside(program: Program, row: int) -> bool:
    name = program.name_of(row)
    if name == "custom-call":
        said = f"{program.paths.get(row, '')} {program.texts.get(row, '')}"
        return _CALLBACK in said
    return name in _FROM_OUTSIDE
