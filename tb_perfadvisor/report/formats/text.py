"""Renders reports for a terminal."""

from __future__ import annotations

import io
from collections import Counter

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.report import model
from tb_perfadvisor.report.formats.text_overview import SEVERITY_STYLE, overview_table
from tb_perfadvisor.report.formats.text_table import TextTable
from tb_perfadvisor.report.formats.wording import (
    caption_line,
    first_line,
    number_rows,
    report_name,
    saving_text,
)
from tb_perfadvisor.report.formats.wrapped_text import WrappedText
from tb_perfadvisor.units import format_duration, format_share

WIDTH = 100
_BAR = 30
_EVIDENCE_ROWS = 5
_REASONS = 4
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
    if document.rejected:
        console.print(WrappedText(f"\nNot read ({len(document.rejected)}):", style="yellow"))
        for rejected in document.rejected:
            console.print(WrappedText(f"  {plain(rejected.path)}: {plain(rejected.reason)}"))


def _report(report: model.Report) -> RenderableType:
    parts: list[RenderableType] = [
        WrappedText(report_name(report), style="bold cyan"),
        WrappedText(report.headline, style="bold"),
        WrappedText(caption_line(report), style="dim"),
        *_first(report),
    ]
    if report.overview.window_ns:
        parts += [Text(), _breakdown(report), Text(), _numbers(report)]
    for index, finding in enumerate(report.findings, start=1):
        parts += [Text(), _finding(index, finding, report)]
    if not report.findings and report.overview.window_ns:
        parts += [Text(), WrappedText("Nothing to change.", style="green")]
    parts += [Text(), _outcomes(report)] if report.overview.window_ns else [Text()]
    for note in report.notes:
        style = "yellow" if note.severity != "info" else "dim"
        text = f"{_NOTES[note.severity]}: {note.message} {note.remedy}".strip()
        parts.append(WrappedText(plain(text), style=style))
    return Group(*parts)


def _first(report: model.Report) -> list[RenderableType]:
    if (line := first_line(report)) is None:
        return []
    title, where = line
    return [Text.assemble(("First: ", "bold"), plain(title), (f" ({where})", "dim"))]


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


def _finding(index: int, finding: model.FindingInfo, report: model.Report) -> RenderableType:
    heading = Text.assemble(
        (f"{index}. {finding.title}", "bold"),
        "  ",
        (finding.severity, SEVERITY_STYLE[finding.severity]),
        (f"  {finding.rule_id}{', preview' if finding.is_preview else ''}", "dim"),
    )
    parts: list[RenderableType] = [
        WrappedText(saving_text(finding.saving, report), style="green"),
        WrappedText(plain(finding.summary)),
    ]
    tables = [item for item in finding.evidence if isinstance(item, model.TableEvidence)]
    for table in tables[:1]:
        parts += [Text(), WrappedText(table.title, style="dim"), TextTable(table, _EVIDENCE_ROWS)]
    for remedy in finding.remedies[:2]:
        parts += [Text(), WrappedText(f"→ {remedy.text}")]
        if remedy.snippet:
            parts.append(Padding(_Snippet(remedy.snippet, remedy.language), (0, 0, 0, _INDENT)))
    content = Group(heading, Padding(Group(*parts), (0, 0, 0, _INDENT)))
    # Indent a finding that refines the one above.
    return Padding(content, (0, 0, 0, _INDENT if finding.refines else 0))


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
        yield Syntax(text, self._language, background_color="default", word_wrap=True)


def _outcomes(report: model.Report) -> RenderableType:
    """How many rules found nothing, and why."""
    counts = Counter(outcome.status for outcome in report.outcomes)
    parts: list[RenderableType] = [WrappedText(f"Checks passed: {counts['passed']}", style="dim")]
    reasons = Counter(
        _reason(outcome) for outcome in report.outcomes if outcome.status == "not_applicable"
    )
    if reasons:
        parts.append(WrappedText(f"Checks not applicable: {counts['not_applicable']}", style="dim"))
        ranked = reasons.most_common(_REASONS)
        if other := counts["not_applicable"] - sum(count for _, count in ranked):
            ranked.append(("other reasons", other))
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(justify="right", width=5, style="dim")
        table.add_column(style="dim")
        for reason, count in ranked:
            table.add_row(str(count), WrappedText(plain(reason)))
        parts.append(table)
    failed = [outcome.rule_id for outcome in report.outcomes if outcome.status == "failed"]
    if failed:
        parts.append(WrappedText(f"Checks failed: {', '.join(failed)}", style="dim"))
    return Group(*parts)


def _reason(outcome: model.Outcome) -> str:
    return outcome.missing[0].reason if outcome.missing else outcome.reason or ""
