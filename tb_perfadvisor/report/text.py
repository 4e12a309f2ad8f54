"""The report for a terminal."""

from __future__ import annotations

import io

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from tb_perfadvisor.report import model
from tb_perfadvisor.report.cells import (
    format_cell,
    key_numbers,
    plain,
    report_name,
    saving_text,
    subline,
)
from tb_perfadvisor.units import format_duration, format_share

WIDTH = 100
_BAR = 30
_EVIDENCE_ROWS = 5
_STYLE = {"high": "bold red", "medium": "yellow", "low": "dim"}


def render_text(document: model.Document) -> str:
    """The whole document as plain text, without colours."""
    buffer = io.StringIO()
    print_document(document, Console(file=buffer, width=WIDTH, no_color=True, highlight=False))
    return buffer.getvalue()


def print_document(document: model.Document, console: Console) -> None:
    """Print to a console, in colour where it has any."""
    for index, report in enumerate(document.reports):
        if index:
            console.rule(style="dim")
        console.print(_report(report))
    if document.rejected:
        console.print(Text(f"\nNot read ({len(document.rejected)}):", style="yellow"))
        for rejected in document.rejected:
            console.print(Text(f"  {plain(rejected.path)}: {plain(rejected.reason)}"))


def _report(report: model.Report) -> RenderableType:
    parts: list[RenderableType] = [
        Text(report_name(report), style="bold cyan"),
        Text(report.headline, style="bold"),
        Text(subline(report), style="dim"),
        Text(),
        _breakdown(report),
        Text(),
        _numbers(report),
    ]
    for index, finding in enumerate(report.findings, start=1):
        parts += [Text(), _finding(index, finding, report)]
    parts += [Text(), _outcomes(report)]
    for note in report.notes:
        style = "yellow" if note.severity != "info" else "dim"
        text = f"{note.id}: {note.message} {note.remedy}".strip()
        parts.append(Text(plain(text), style=style))
    return Group(*parts)


def _breakdown(report: model.Report) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column()
    steps = max(report.overview.steps, 1)
    for part in report.overview.breakdown:
        table.add_row(
            Text(part.label),
            Text(format_duration(part.total_ns / steps)),
            Text(format_share(part.share)),
            Text("█" * round(part.share * _BAR), style="blue"),
        )
    return table


def _numbers(report: model.Report) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for name, value in key_numbers(report):
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def _finding(index: int, finding: model.FindingInfo, report: model.Report) -> RenderableType:
    indent = 4 if finding.refines else 0
    heading = Text.assemble(
        (f"{index}. {finding.title}", "bold"),
        f"  [{finding.rule_id}] ",
        (finding.severity, _STYLE[finding.severity]),
        (" preview" if finding.is_preview else "", "dim"),
    )
    parts: list[RenderableType] = [
        heading,
        Text(plain(finding.summary)),
        Text(saving_text(finding.saving, report), style="green"),
    ]
    tables = [one for one in finding.evidence if isinstance(one, model.TableEvidence)]
    parts += [_table(one) for one in tables[:1]]
    for remedy in finding.remedies[:2]:
        parts.append(Text(f"→ {remedy.text}"))
        if remedy.snippet:
            code = Syntax(
                remedy.snippet, remedy.language, background_color="default", word_wrap=True
            )
            parts.append(Padding(code, (0, 0, 0, 4)))
    return Padding(Group(*parts), (0, 0, 0, indent))


def _table(evidence: model.TableEvidence) -> RenderableType:
    table = Table(box=None)
    for column in evidence.columns:
        table.add_column(column.label, justify="right" if column.unit else "left", style="dim")
    for row in evidence.rows[:_EVIDENCE_ROWS]:
        cells = zip(row, evidence.columns, strict=True)
        table.add_row(*(Text(format_cell(cell, column.unit)) for cell, column in cells))
    return Group(Text(evidence.title, style="dim"), table)


def _outcomes(report: model.Report) -> RenderableType:
    by_status: dict[str, list[str]] = {}
    for outcome in report.outcomes:
        by_status.setdefault(outcome.status, []).append(outcome.rule_id)
    lines = []
    for status, label in (
        ("passed", "passed"),
        ("not_applicable", "not applicable"),
        ("failed", "failed"),
    ):
        if by_status.get(status):
            lines.append(f"{label}: {', '.join(by_status[status])}")
    return Text("\n".join(lines), style="dim")
