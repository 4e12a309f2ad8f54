"""What a finding is about in this program, in a few words for its title."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Cell, Finding, Table
from tb_perfadvisor.trace.names import short_name

MOST_CHARACTERS = 64
"""A title should fit on one line."""
_PLACES = ("source", "line")
_PARTS = ("product", "array")


def instance_of(finding: Finding) -> str:
    """The instance that a finding states, or that its evidence lists first; else empty."""
    if finding.instance:
        return finding.instance
    for table in finding.evidence:
        if isinstance(table, Table) and table.names_instance and table.rows:
            return _of_row(table, table.rows[0])
    return ""


def fetch_name(name: str) -> str:
    """The DataLoader whose iterator PyTorch names, or else the name itself."""
    return "DataLoader" if name.startswith("enumerate(DataLoader)") else name


def _of_row(table: Table, row: tuple[Cell, ...]) -> str:
    """The subject of a row, its size, and the line of code behind it."""
    cells = {column.key: cell for column, cell in zip(table.columns, row, strict=True)}
    subject, *_ = row
    if not isinstance(subject, str) or not subject or subject.startswith("("):
        return ""
    named = [short_name(subject)]
    named += [f"{cells[key]}" for key in _PARTS if cells.get(key)]
    places = [f" at {short_name(str(cells[key]))}" for key in _PLACES if cells.get(key)]
    text = " of ".join(named) + "".join(places[:1])
    if len(text) > MOST_CHARACTERS:
        text = " of ".join(named)
    return text if len(text) <= MOST_CHARACTERS else named[0]
