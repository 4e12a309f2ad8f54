"""Where the program makes the part that a finding is about, as its recorder saw it."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.machine.facts import Made
from tb_perfadvisor.rules.finding import Column, Table
from tb_perfadvisor.signals import Signals


def made_tables(parts: Iterable[Made]) -> tuple[Table, ...]:
    """A table of the lines that make some parts; none if no recorder saw them."""
    rows = tuple(dict.fromkeys((made.name, f"{made.path}:{made.line} {made.function}".strip())
                               for made in parts))  # fmt: skip
    columns = (Column("name", "Part"), Column("place", "Where"))
    return (Table("Where the program makes it", columns, rows),) if rows else ()


def step_loops(signals: Signals) -> tuple[Table, ...]:
    """A table of the loops that make the steps; none if no recorder saw them."""
    return made_tables(signals.trace.facts.program.all_made("step loop"))
