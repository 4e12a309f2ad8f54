"""Tables of evidence in a terminal: as a table if it fits, else as a list of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tb_perfadvisor.contract import model
from tb_perfadvisor.report.formats.wording import format_cell
from tb_perfadvisor.report.formats.wrapped_text import WrappedText

_GAP = 2
_MIN_NAME_WIDTH = 24
"""Longer names are cut to this width if the numbers next to them need the space."""
_MOST_CHARACTERS = 100
"""Of a cell in a list: names of compiled kernels have hundreds."""
_BULLET = "• "
_UNKNOWN = "–"


class TextTable:
    """The first rows of a table.

    Numbers are never cut; names are cut if they take too much space. If the terminal is too narrow
    even for that, each row is listed as text.
    """

    def __init__(self, evidence: model.TableEvidence, most_rows: int) -> None:
        rows = evidence.rows[:most_rows]
        # Leave out blank columns, for example if the profile has no shapes or source lines.
        columns = [
            (place, column)
            for place, column in enumerate(evidence.columns)
            if not rows or any(row[place] != "" for row in rows)
        ]
        self._columns = [column for _, column in columns]
        self._rows = [
            [format_cell(row[place], column.unit) for place, column in columns] for row in rows
        ]
        self._more = len(evidence.rows) - len(self._rows) + evidence.truncated

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table or the list, and the number of rows left out."""
        widths = self._widths(options.max_width)
        yield self._list() if widths is None else self._table(widths)
        if self._more:
            yield Text(f"… and {self._more:,} more", style="dim")

    def _widths(self, room: int) -> list[int] | None:
        """The width of each column; None if the columns do not fit even at their minimum width."""
        wanted = list(zip(*self._rows, strict=True)) or [()] * len(self._columns)
        longest = [max(map(cell_len, cells), default=0) for cells in wanted]
        labels = [cell_len(column.label) for column in self._columns]
        words = [max(map(cell_len, column.label.split())) for column in self._columns]
        widths = [
            max(word, cell if column.unit else min(cell, _MIN_NAME_WIDTH))
            for column, cell, word in zip(self._columns, longest, words, strict=True)
        ]
        room -= sum(widths) + _GAP * (len(widths) - 1)
        if room < 0:
            return None
        # Give the remaining space first to names that are cut, then to labels that are wrapped.
        for needed in (longest, labels):
            for index, width in enumerate(widths):
                more = min(max(needed[index] - width, 0), room)
                widths[index] += more
                room -= more
        return widths

    def _table(self, widths: Sequence[int]) -> RenderableType:
        # The gaps are columns, because rich before 14.3 pads the last column as well.
        table = Table(box=None, pad_edge=False, padding=0, header_style="bold")
        for place, (column, width) in enumerate(zip(self._columns, widths, strict=True)):
            if place:
                table.add_column(width=_GAP)
            justify = "right" if column.unit else "left"
            table.add_column(column.label, justify=justify, style="dim", width=width)  # type: ignore[arg-type]
        for row in self._rows:
            cells: list[RenderableType] = []
            for cell in map(WrappedText, row):
                cells += ["", cell] if cells else [cell]
            table.add_row(*cells)
        return table

    def _list(self) -> RenderableType:
        table = Table.grid()
        table.add_column(style="dim")
        table.add_column(style="dim", overflow="fold")
        for row in self._rows:
            table.add_row(_BULLET, WrappedText(" · ".join(self._labeled_cells(row))))
        return table

    def _labeled_cells(self, row: Sequence[str]) -> Iterator[str]:
        """The known cells of a row, each with its column's label except for the row's subject."""
        for index, (column, cell) in enumerate(zip(self._columns, row, strict=True)):
            is_subject = index == 0 and not column.unit
            if cell in ("", _UNKNOWN) or (index and cell == row[0]):
                continue
            short = cell if len(cell) <= _MOST_CHARACTERS else f"{cell[: _MOST_CHARACTERS - 1]}…"
            yield short if is_subject else f"{column.label}: {short}"
