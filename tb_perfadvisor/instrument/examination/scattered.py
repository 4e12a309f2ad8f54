"""Lookups in a table that stays the same, whose reads lie far apart in memory."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from tb_perfadvisor.instrument.examination.calls import Call, Place
from tb_perfadvisor.instrument.examination.noted import Steps, all_calls, kept_share, noted
from tb_perfadvisor.machine.facts import Observed

_MOST_KEPT: Final = 0.5


def scattered_reads(steps: Steps) -> list[Observed]:
    """Lookups that would read half of the cache lines or fewer from a table in another order."""
    tables: dict[Place | None, set[int | None]] = defaultdict(set)
    found: list[Call] = []
    for call in all_calls(steps):
        if call.lines is not None and call.lines[1] <= _MOST_KEPT * call.lines[0]:
            found.append(call)
            tables[call.place].add(call.inputs[0].digest)
    # A table that changes would have to be written in another order in each step.
    found = [call for call in found if None not in (t := tables[call.place]) and len(t) == 1]
    kept = {id(call): call.lines[1] / call.lines[0] for call in found if call.lines is not None}
    return noted("scattered reads", steps, found, amount=kept_share(kept))
