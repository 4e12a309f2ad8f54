"""All-gathers of which each device uses a part, or only the sum over the devices.

A device that takes its own heads from the gathered heads of all devices needs an exchange
(all-to-all) instead. One that adds up gathered gradients needs an all-reduce, or a reduce-scatter
if it keeps a part of the sum. Both send a fraction of the bytes.
"""

from __future__ import annotations

from collections import deque
from typing import Literal, NamedTuple, TypeAlias

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import (
    SAME_ELEMENTS,
    FasterOperation,
    Running,
    mean_ns,
    readers,
    running_programs,
    that_touch,
)
from tb_perfadvisor.signals.program.useful_work import MAPS
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.program import Program

_GATHERS = ("all-gather", "all-gather-start")
_OWN = ("partition-id", "replica-id")
_TAKES = ("dynamic-slice", "dynamic-slice-start")
_LEAST_BYTES = 1 << 20
_MOST_STEPS = 200
_LEAST_SAVED = 0.25

Use: TypeAlias = Literal["part", "sum", "part of sum"]
"""What each device needs of the gathered array."""


class GatheredPart(NamedTuple):
    """An all-gather that sends more than is used."""

    running: Running
    gathered: int
    """Its row in the program."""
    by: int
    """The row of what uses a part, or sums up."""
    share: float
    """Bytes of the exchange that is enough, relative to these."""
    use: Use


@memoized
def gathered_parts(signals: Signals) -> tuple[GatheredPart, ...]:
    """The all-gathers of the used window that send more than is used."""
    found = (
        _part(running, row)
        for running in running_programs(signals)
        for row in running.program.rows_of(_GATHERS)
        if running.program.shape_of(row).padded_bytes >= _LEAST_BYTES
    )
    return tuple(part for part in found if part is not None and part.share <= 1 - _LEAST_SAVED)


def _part(running: Running, row: int) -> GatheredPart | None:
    program, through = running.program, (*SAME_ELEMENTS, "custom-call")
    if program.is_result[row]:
        return None
    size, group = program.shape_of(row).elements, program.groups.get(row, program.devices)
    # Pieces of an asynchronous exchange that nothing reads stand for no use.
    users = [u for u in readers(program, row, through) if program.users(u) or program.is_result[u]]
    if not users or group < 2:
        return None
    if all(_takes_own(program, user) for user in users):
        taken = sum(program.shape_of(user).elements for user in users) / size
        return GatheredPart(running, row, users[0], min(taken, 1.0), "part")
    # What is computed of each device's part before the sum needs no other part.
    users = list(readers(program, row, (*through, *MAPS)))
    sums = [user for user in users if _sums_over(program, user, size, group)]
    if len(users) != 1 or len(sums) != 1:
        return None
    then = list(readers(program, sums[0], (*SAME_ELEMENTS, *MAPS)))
    is_split = bool(then) and all(_takes_own(program, user) for user in then)
    use: Use = "part of sum" if is_split else "sum"
    return GatheredPart(running, row, sums[0], (1 if is_split else 2) / group, use)


def _takes_own(program: Program, row: int) -> bool:
    """Whether each device takes a part of a value by its own number."""
    return program.name_of(row) in _TAKES and any(
        _depends_on_device(program, place)
        for slot in range(1, 1 + len(program.shape_of(row).dims))
        for place in program.operands(row, slot)
    )


def _depends_on_device(program: Program, place: int) -> bool:
    """Whether a number is computed from that of the device."""
    pending, seen = deque([place]), {place}
    while pending and len(seen) < _MOST_STEPS:
        row = pending.popleft()
        if program.name_of(row) in _OWN:
            return True
        for of in program.operands(row):
            if of not in seen:
                seen.add(of)
                pending.append(of)
    return False


def _sums_over(program: Program, row: int, size: int, group: int) -> bool:
    """Whether something sums up the gathered parts."""
    is_sum = program.name_of(row) == "reduce" and len(program.operands(row)) == 2
    return is_sum and program.shape_of(row).elements * group == size


def with_smaller_exchanges(signals: Signals) -> list[FasterOperation]:
    """The all-gathers, and what waits for them, if only what is used were sent.

    Where parts are added up, the exchange does that, too.
    """
    faster: dict[int, FasterOperation] = {}
    for found in gathered_parts(signals):
        share, name = found.share, found.running.program.kernel_of(found.gathered)
        for operation in that_touch(signals, found.running, [name]):
            # The end of an asynchronous exchange is a fusion that holds it.
            is_exchange = operation.category.startswith(("all-gather", "async"))
            if is_exchange or operation.name == name:
                now = mean_ns(signals, operation)
                faster[operation.op] = FasterOperation(
                    operation, now * share, now * share / 2, now * (1 + share) / 2
                )
        for operation in found.running.of([found.by] if found.use != "part" else []):
            now = mean_ns(signals, operation)
            faster.setdefault(operation.op, FasterOperation(operation, now * share, 0.0, now))
    return list(faster.values())
