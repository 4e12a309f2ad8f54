"""Renders reports for a terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.run_row import report_name
from tb_perfadvisor.plain_text import plain, plain_lines
from tb_perfadvisor.report.formats.branches import Branch, Entry, branches_of, first_entry
from tb_perfadvisor.report.formats.text_overview import SEVERITY_STYLE, overview_table
from tb_perfadvisor.report.formats.text_table import TextTable
from tb_perfadvisor.report.formats.wording import (
    caption_line,
    checks_lines,
    number_rows,
    place_line,
    recordable_checks,
    rejected_lines,
    remaining_notes,
    saving_line,
    source_lines,
    steps_left_out,
    trust_lines,
)
from tb_perfadvisor.report.formats.wrapped_text import WrappedText
from tb_perfadvisor.units import format_duration, format_share

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
        WrappedText(report.headline, style="bold"),
        WrappedText(caption_line(report), style="dim"),
        *_trust(report),
        *_first(report),
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


def _first(report: model.Report) -> list[RenderableType]:
    if (entry := first_entry(report)) is None:
        return []
    title = plain(entry.finding.title)
    where = (f" (finding {entry.number})", "dim")
    return [WrappedText(Text.assemble(("First: ", "bold"), title, where))]


def _whole_run(report: model.Report) -> list[RenderableType]:
    if report.whole_run is None:
        return []
    return [Text(), *(WrappedText(plain(line)) for line in report.whole_run.sentences)]


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
