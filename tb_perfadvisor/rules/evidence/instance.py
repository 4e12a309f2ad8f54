"""What a finding is about in this program, in a few words for its title."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.finding import Cell, Finding, Table
from tb_perfadvisor.trace.names import short_name
from tb_perfadvisor.trace.tables import Int64

MOST_CHARACTERS = 64
"""A title should fit on one line."""
_LEADING_SHARE = 0.1
"""Making an operator with less of their time faster hardly shortens the step."""
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


def leading_names(names: Sequence[str], own_ns: Int64) -> str:
    """The operators that a title names: `aten::mm and aten::addmm`, the costliest first."""
    leading = [
        name
        for name, is_large in zip(names, own_ns >= _LEADING_SHARE * own_ns.sum(), strict=True)
        if is_large
    ]
    text = ", ".join(leading[:-1]) + " and " * (len(leading) > 1) + leading[-1]
    return text if len(text) <= MOST_CHARACTERS else f"{names[0]} and {len(names) - 1} others"


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
