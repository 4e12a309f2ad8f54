"""A report as text."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.names import report_name, run_row
from tb_perfadvisor.contract.run_row import RunRow
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.plain_text import plain, plain_lines
from tb_perfadvisor.report.formats.wording import (
    Branch,
    Entry,
    branches_of,
    caption_line,
    checks_lines,
    costliest_rows,
    format_cell,
    number_rows,
    place_line,
    recordable_checks,
    rejected_lines,
    remaining_notes,
    saving_line,
    source_lines,
    steps_left_out,
    together_text,
    trust_lines,
)
from tb_perfadvisor.report.key_numbers import framework_name
from tb_perfadvisor.units import format_duration, format_share

# The spaces in `70.4 ms`, `14.7 %`, `1.50 GiB`, `450 GB/s` and `< 0.1 %`.
_SPACE_IN_QUANTITY = regex(
    r"(?<=\d) (?=(?:%|[nµm]?s|[KMGTP]iB|[kMGTP]?(?:B(?:/s)?|FLOP/s))(?![\w/]))|(?<=[<>]) (?=-?\d)"
)
# A Unicode noncharacter: one column wide, not a space, and never part of a text.
_PLACEHOLDER = "\ufdd0"


class WrappedText:
    """Text that keeps a number and its unit on one line.

    A no-break space does not help, because rich breaks lines at any white space.
    """

    def __init__(self, text: str | Text = "", style: str = "") -> None:
        self._text = text.copy() if isinstance(text, Text) else Text(text, style)
        self._text.plain = _SPACE_IN_QUANTITY.sub(_PLACEHOLDER, self._text.plain)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines, wrapped to the available width."""
        for segment in self._text.__rich_console__(console, options):
            yield Segment(segment.text.replace(_PLACEHOLDER, " "), segment.style, segment.control)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """The minimum and maximum width."""
        return self._text.__rich_measure__(console, options)


SEVERITY_STYLE = {"high": "bold red", "medium": "yellow", "low": "dim"}
_NOTHING = "–"
_TRUST = {"limited": "limited trust", "do not act": "do not act: record again"}


def overview_table(reports: list[model.Report]) -> Table:
    """For each capture its name with the change to begin with below, step time and saving."""
    table = Table(box=None, pad_edge=False)
    table.add_column("Run, and what to change first", overflow="fold", ratio=1)
    table.add_column("Step", justify="right", no_wrap=True)
    table.add_column("Saves", justify="right", no_wrap=True)
    table.add_column("Severity", no_wrap=True)
    is_mixed = len({report.framework for report in reports}) > 1
    runs = Counter(report.run for report in reports)
    for report in reports:
        name = report_name(report) if runs[report.run] > 1 else plain(report.run) or "."
        row = run_row(report)
        where = [framework_name(row.framework)] if is_mixed else []
        where += [row.device] if row.device else []
        where += [_TRUST[row.trust]] if row.trust != "solid" else []
        table.add_row(
            Group(
                WrappedText(Text.assemble((name, "bold"), f"  {plain(', '.join(where))}")),
                Padding(_first_change(row), (0, 0, 0, 2)),
            ),
            WrappedText(
                _NOTHING if row.step_time_ns is None else format_duration(row.step_time_ns)
            ),
            *_worth(row),
        )
    return table


def _first_change(row: RunRow) -> WrappedText:
    """The change to begin with; otherwise the headline."""
    if row.first_change is None:
        return WrappedText(plain(row.headline), style="dim")
    return WrappedText(plain(row.first_change))


def _worth(row: RunRow) -> tuple[WrappedText, Text]:
    """The share of the step that the change saves, and its severity."""
    if row.first_change is None or row.severity is None:
        return WrappedText(_NOTHING), Text()
    saves = _NOTHING if row.saves_share is None else format_share(row.saves_share)
    return WrappedText(saves), Text(row.severity, style=SEVERITY_STYLE[row.severity])


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


WIDTH = 100
_BAR = 30
_EVIDENCE_ROWS = 5
_MOST_REMEDIES = 2
_MOST_PLACES = 2
_INDENT = 3
_NOTES = {"info": "Note", "warning": "Warning", "error": "Problem"}


def render_text(document: model.Document) -> str:
    """The whole document as plain text, without colors."""
    buffer = io.StringIO()
    print_document(document, Console(file=buffer, width=WIDTH, no_color=True, highlight=False))
    return buffer.getvalue()


def print_document(document: model.Document, console: Console) -> None:
    """Print to a console, in color where it has any: a table if there are several, then each."""
    if len(document.reports) > 1:
        console.print(overview_table(document.reports))
        console.rule(style="dim")
    for index, report in enumerate(document.reports):
        if index:
            console.rule(style="dim")
        console.print(_report(report))
    _print_rejected(document, console)


def print_overview(document: model.Document, console: Console) -> None:
    """Print only the table of the captures."""
    console.print(overview_table(document.reports))
    _print_rejected(document, console)


def _print_rejected(document: model.Document, console: Console) -> None:
    count = len(document.rejected) + document.rejected_truncated
    if count:
        console.print(WrappedText(f"\nNot read ({count:,}):", style="yellow"))
        for line in rejected_lines(document):
            console.print(WrappedText(f"  {plain(line)}"))


def _report(report: model.Report) -> RenderableType:
    parts: list[RenderableType] = [
        WrappedText(report_name(report), style="bold cyan"),
        WrappedText(plain(report.headline), style="bold"),
        WrappedText(caption_line(report), style="dim"),
        *_trust(report),
        *([WrappedText(together)] if (together := together_text(report)) else []),
        *_costliest(report),
        *_whole_run(report),
    ]
    # A memory snapshot has no time, but numbers.
    has_content = bool(report.overview.window_ns or report.overview.memory)
    if report.overview.window_ns:
        parts += [Text(), _breakdown(report)]
    if has_content:
        parts += [Text(), _numbers(report)]
    for branch in branches_of(report):
        parts += [Text(), _branch(branch, report)]
    if not report.findings and has_content:
        parts += [Text(), _nothing_found(report)]
    parts += [Text(), _outcomes(report)] if has_content else [Text()]
    for note in remaining_notes(report):
        style = "yellow" if note.severity != "info" else "dim"
        text = f"{_NOTES[note.severity]}: {note.message} {note.remedy}".strip()
        parts.append(WrappedText(plain(text), style=style))
    return Group(*parts)


def _trust(report: model.Report) -> list[RenderableType]:
    lines = [plain(line) for line in trust_lines(report)]
    style = "bold red" if report.trust.level == "do not act" else "yellow"
    left_out = steps_left_out(report)
    return [
        *(WrappedText(line, style=style) for line in lines[:1]),
        *(Padding(WrappedText(line, style="yellow"), (0, 0, 0, 2)) for line in lines[1:]),
        *([WrappedText(plain(left_out), style="dim")] if left_out else []),
    ]


def _nothing_found(report: model.Report) -> WrappedText:
    if (unseen := report.blind_spot) is not None and unseen.looked:
        # The headline says why.
        return WrappedText(f"No findings, but only {unseen.looked} of {unseen.checks} checks ran.")
    if any(outcome.status == "passed" for outcome in report.outcomes):
        return WrappedText("Nothing to change.", style="green")
    return WrappedText("No findings, because nothing could be checked.")


def _whole_run(report: model.Report) -> list[RenderableType]:
    if report.whole_run is None:
        return []
    return [Text(), *(WrappedText(plain(line)) for line in report.whole_run.sentences)]


def _costliest(report: model.Report) -> list[RenderableType]:
    heading, *rows = costliest_rows(report) or [()]
    if not rows:
        return []
    table = Table.grid(padding=(0, 2))
    for label in heading:
        table.add_column(justify="left" if label in ("Where", heading[0]) else "right")
    table.add_row(*(Text(label, style="dim") for label in heading))
    for row in rows:
        table.add_row(*(WrappedText(cell) for cell in row))
    return [Text(), table]


def _breakdown(report: model.Report) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column()
    steps = max(report.overview.steps, 1)
    for part in report.overview.breakdown:
        table.add_row(
            WrappedText(part.label),
            WrappedText(format_duration(part.total_ns / steps)),
            WrappedText(format_share(part.share)),
            Text("█" * round(part.share * _BAR), style="blue"),
        )
    return table


def _numbers(report: model.Report) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for name, value, notes in number_rows(report):
        table.add_row(
            WrappedText(name, style="dim"), WrappedText(value), WrappedText(notes, style="dim")
        )
    return table


def _branch(branch: Branch, report: model.Report) -> RenderableType:
    """A finding with those that refine it, indented."""
    general = branch.entry.finding
    remedies = _remedies(branch.remedies)
    if general.heading is None:
        parts = [_finding(branch.entry, report, remedies)]
    else:
        parts = [_finding(branch.entry, report, [])]
    for entry in branch.refined:
        refined = _finding(entry, report, _remedies(entry.finding.remedies))
        parts += [Text(), Padding(refined, (0, 0, 0, _INDENT))]
    if general.heading is not None and remedies:
        parts.append(Padding(Group(*remedies), (0, 0, 0, _INDENT)))
    return Group(*parts)


def _finding(
    entry: Entry, report: model.Report, remedies: Sequence[RenderableType]
) -> RenderableType:
    finding = entry.finding
    severity = () if finding.heading else ((finding.severity, SEVERITY_STYLE[finding.severity]),)
    heading = Text("  ").join(
        Text(*part)
        for part in (
            (f"{entry.number}. {plain(entry.title)}", "bold"),
            *severity,
            (f"{finding.rule_id}{', preview' if finding.is_preview else ''}", "dim"),
        )
    )
    saving = saving_line(finding, report)
    parts: list[RenderableType] = [
        WrappedText(saving, style="green"),
        WrappedText(plain(finding.summary)),
    ]
    tables = [item for item in finding.evidence if isinstance(item, model.TableEvidence)]
    for table in tables[:1]:
        parts += [Text(), WrappedText(table.title, style="dim"), TextTable(table, _EVIDENCE_ROWS)]
    content = Group(*parts, *_code(finding), *remedies)
    return Group(WrappedText(heading), Padding(content, (0, 0, 0, _INDENT)))


def _code(finding: model.FindingInfo) -> list[RenderableType]:
    """The lines of the user's code that a finding is about, if a repository was named."""
    parts: list[RenderableType] = []
    for place in finding.places[:_MOST_PLACES]:
        if place.source is not None:
            code = "\n".join(source_lines(place))
            parts += [Text(), WrappedText(plain(place_line(place)), style="dim")]
            parts += [WrappedText(plain_lines(code))] if code else []
    return parts


def _remedies(remedies: Sequence[model.Remedy]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    for remedy in remedies[:_MOST_REMEDIES]:
        parts += [Text(), WrappedText(f"→ {remedy.text}")]
        if remedy.snippet:
            parts.append(Padding(_Snippet(remedy.snippet, remedy.language), (0, 0, 0, _INDENT)))
    return parts


class _Snippet:
    """Code. If a line is too long for the terminal, its comment moves to the line above.

    A comment broken in the middle would keep code copied from the terminal from running.
    """

    def __init__(self, snippet: str, language: str) -> None:
        self._lines = snippet.splitlines()
        self._language = language

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines: list[str] = []
        for line in self._lines:
            code, mark, comment = line.partition("  # ")
            if mark and code and cell_len(line) > options.max_width:
                lines.append(f"{line[: len(line) - len(line.lstrip())]}# {comment.strip()}")
                line = code.rstrip()
            lines.append(line)
        text = "\n".join(lines)
        if console.color_system is None:  # importing and starting the highlighter takes a while
            yield Text(text)
            return
        from rich.syntax import Syntax

        yield Syntax(text, self._language, background_color="default", word_wrap=True)


def _outcomes(report: model.Report) -> RenderableType:
    """How many checks found nothing, and what to record so that more can run."""
    parts: list[RenderableType] = [WrappedText(line, style="dim") for line in checks_lines(report)]
    if report.not_checked:
        count = len(recordable_checks(report))
        more = f"{count} more check{'' if count == 1 else 's'}"
        if sum(len(gap.rule_ids) for gap in report.not_checked) > count:
            more += ", some of which need more than one of these"
        parts.append(WrappedText(f"Another recording would allow {more}:", style="dim"))
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(justify="right", width=5, style="dim")
        table.add_column(style="dim", overflow="fold")
        for gap in report.not_checked:
            table.add_row(str(len(gap.rule_ids)), WrappedText(plain(gap.remedy)))
        parts.append(table)
    return Group(*parts)
