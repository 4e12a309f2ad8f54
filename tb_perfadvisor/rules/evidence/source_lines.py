"""The lines of the program that the main thread was seen in."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import Line, Lines
from tb_perfadvisor.rules.finding import Column, Table
from tb_perfadvisor.units import format_share

_MOST = 12
_OFTEN = 0.05
_FRAMEWORKS = frozenset({"torch", "tensorflow", "keras", "jax", "jaxlib", "flax", "optax"})


def lines_tables(lines: Lines | None) -> tuple[Table, ...]:
    """A table of lines with their share of the run, and what they call; none if none were seen."""
    if lines is None:
        return ()
    rows = tuple((_place(line), line.calls or None, line.share) for line in lines.lines[:_MOST])
    columns = (
        Column("line", "Source line"),
        Column("calls", "Calls"),
        Column("share", "Of the time", "share"),
    )
    return (Table("Where the program was, over its whole run", columns, rows),)


def described(line: Line) -> str:
    """`70 % of the time in train.py:52 train, which calls matplotlib.pyplot.pause`."""
    calls = f", which calls {line.calls}" if line.calls else ""
    return f"{format_share(line.share)} of the time in {_place(line)}{calls}"


def seen_most(lines: Lines | None) -> str:
    """Where the program was most often outside of frameworks; empty if that was not often.

    What frameworks do is in profiles.
    """
    found = next(filter(_is_outside, () if lines is None else lines.lines), None)
    if found is None or found.share < _OFTEN:
        return ""
    return f". Over its whole run, the program was {described(found)}"


def _is_outside(line: Line) -> bool:
    return line.calls.partition(".")[0] not in _FRAMEWORKS or line.side_work is not None


def _place(line: Line) -> str:
    return f"{line.path}:{line.line} {line.function}".strip()
