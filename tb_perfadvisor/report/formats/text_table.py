"""The tables of evidence in a terminal: whole where they fit, else row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tb_perfadvisor.report import model
from tb_perfadvisor.report.formats.wording import format_cell
from tb_perfadvisor.report.formats.wrapped_text import WrappedText

_GAP = 2
_LEAST_NAME = 24
"""Of a longer name so much tells most of it, where numbers beside it want their place."""
_BULLET = "• "
_UNKNOWN = "–"


class TextTable:
    """The first rows of a table.

    Numbers stand whole, and names are cut where they take more than their share. On a terminal
    too narrow for that, each row is a sentence of its cells.
    """

    def __init__(self, evidence: model.TableEvidence, most_rows: int) -> None:
        """Format the cells; how many rows are left out is said below them."""
        rows = evidence.rows[:most_rows]
        # Where the profile names no shapes or source lines, their columns are blank.
        kept = [
            (place, column)
            for place, column in enumerate(evidence.columns)
            if not rows or any(row[place] != "" for row in rows)
        ]
        self._columns = [column for _, column in kept]
        self._rows = [[format_cell(row[place], of.unit) for place, of in kept] for row in rows]
        self._more = len(evidence.rows) - len(self._rows) + evidence.truncated

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, or its rows one by one."""
        widths = self._widths(options.max_width)
        yield self._list() if widths is None else self._table(widths)
        if self._more:
            yield Text(f"… and {self._more:,} more", style="dim")

    def _widths(self, room: int) -> list[int] | None:
        """Of each column; None where not even the least that each needs has room."""
        wanted = list(zip(*self._rows, strict=True)) or [()] * len(self._columns)
        longest = [max(map(cell_len, cells), default=0) for cells in wanted]
        labels = [cell_len(column.label) for column in self._columns]
        words = [max(map(cell_len, column.label.split())) for column in self._columns]
        widths = [
            max(word, cell if column.unit else min(cell, _LEAST_NAME))
            for column, cell, word in zip(self._columns, longest, words, strict=True)
        ]
        room -= sum(widths) + _GAP * (len(widths) - 1)
        if room < 0:
            return None
        # What is left goes to names that are cut first, then to labels on several lines.
        for needed in (longest, labels):
            for index, width in enumerate(widths):
                more = min(max(needed[index] - width, 0), room)
                widths[index] += more
                room -= more
        return widths

    def _table(self, widths: Sequence[int]) -> RenderableType:
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for column, width in zip(self._columns, widths, strict=True):
            justify = "right" if column.unit else "left"
            table.add_column(column.label, justify=justify, style="dim", width=width)  # type: ignore[arg-type]
        for row in self._rows:
            table.add_row(*map(WrappedText, row))
        return table

    def _list(self) -> RenderableType:
        table = Table.grid()
        table.add_column(style="dim")
        table.add_column(style="dim", overflow="fold")
        for row in self._rows:
            table.add_row(_BULLET, WrappedText(" · ".join(self._told(row))))
        return table

    def _told(self, row: Sequence[str]) -> Iterator[str]:
        """What is known of a row, each with its column's name; what the row is of needs none."""
        for index, (column, cell) in enumerate(zip(self._columns, row, strict=True)):
            if cell not in ("", _UNKNOWN):
                is_subject = index == 0 and not column.unit
                yield cell if is_subject else f"{column.label}: {cell}"
