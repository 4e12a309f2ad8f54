"""Operations whose result is the same in every step."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.program.fixed_values import fixed_operations
from tb_perfadvisor.signals.program.graph import FasterOperation, mean_ns, total_ns

_READ_SHARE = 0.05
"""Of the time, for reading the result from memory, where it has just been written now."""
_WORST_SHARE = 0.25


class RecomputedConstants(FasterOperations):
    """The step computes what is the same in every step.

    What it finds
    -------------
    XLA operations that depend on no argument of the program, only on constants that are part of it:
    the factors of a matrix that never changes, a table of positions, a sorted list. The embedded
    program shows it.

    Why it matters
    --------------
    XLA computes small expressions of constants while it compiles, but leaves factorizations, loops
    and large arrays to each run. Computed once before the steps and passed as an argument, the
    result costs a read.

    How it is measured
    ------------------
    High is all time of these operations. Expected leaves a twentieth of it for reading the result.
    Low leaves a quarter, and loops as they are: trips of a microsecond take several times as long
    while they are recorded, and a library function may run the loop even if it gets the factors.

    When to ignore
    --------------
    When the result does not fit into memory beside everything else.

    How to verify
    -------------
    The operations are gone from the step.

    References:
    ----------
    JAX documentation, "Just-in-time compilation", on values that a traced function captures.
    """

    id = "recomputed-constants"
    title = "Compute once what is the same in every step"

    minimum_share = Limit(
        0.03, "share", "Masks and positions that are computed again take less than this."
    )

    needs = (Need.WORK, Need.XLA_OPERATIONS, Need.PROGRAMS)

    noun = "operation"
    changes = ("once-before-steps",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The operations, of which hardly anything remains."""
        return [
            FasterOperation(
                o, _READ_SHARE * now, 0.0, now * (1 if o.opcode == "while" else _WORST_SHARE)
            )
            for o in fixed_operations(signals)
            for now in (mean_ns(signals, o),)
        ]

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The costliest operation, with its source line."""
        found = fixed_operations(signals)
        worst = max(found, key=lambda operation: total_ns(signals, [operation]))
        line = signals.trace.text(int(signals.trace.hlo.source_line[worst.op]))
        called = worst.path.rpartition("/")[2] or worst.name
        where = f" ({line})" if line else ""
        return f"{called}{where}", (
            f"{cost} goes into {len(found)} operations that read nothing but constants, so that"
            f" their results are the same in every step. Most of it is {called}{where}."
        )
