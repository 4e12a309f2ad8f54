"""The lines of the program that the main thread was seen in."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import Lines
from tb_perfadvisor.rules.finding import Column, Table

_MOST = 12


def lines_table(lines: Lines) -> Table:
    """Lines with their share of the run, and what they call."""
    return Table(
        "Where the program was, over the whole run",
        (
            Column("line", "Source line"),
            Column("calls", "Calls"),
            Column("share", "Of the time", "share"),
        ),
        tuple(
            (f"{line.path}:{line.line} {line.function}".strip(), line.calls or None, line.share)
            for line in lines.lines[:_MOST]
        ),
    )
