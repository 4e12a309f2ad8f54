"""Renders reports as Markdown, for pull requests, wikis and TensorBoard's Text tab."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.report import model
from tb_perfadvisor.report.formats.wording import (
    caption_line,
    first_line,
    format_cell,
    number_rows,
    report_name,
    saving_text,
)
from tb_perfadvisor.units import format_duration, format_share

# Escaping the colon of an address and the dot after `www` keeps GitHub from adding links.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|!~$&@]|:(?=//)|(?<=www)\.)", re.IGNORECASE)
# At the start of a line: a list, a rule or the underline of a heading.
_BEGINNING = re.compile(r"^(\d*)([-+=.)])")
_EVIDENCE_ROWS = 10


def escape(text: str) -> str:
    """Text of a trace, escaped so that Markdown and HTML do not interpret it."""
    words = " ".join(plain(text).split())  # an indented name would become code
    return _BEGINNING.sub(r"\1\\\2", _SPECIAL.sub(r"\\\1", words))


def render_markdown(document: model.Document) -> str:
    """The whole document."""
    blocks = [_report(report) for report in document.reports]
    if document.rejected:
        lines = "\n".join(f"- {escape(r.path)}: {escape(r.reason)}" for r in document.rejected)
        blocks.append(f"## Files not read\n\n{lines}")
    return "\n\n".join(blocks) + "\n"


def _report(report: model.Report) -> str:
    blocks = [f"# {escape(report_name(report))}", *head_blocks(report)]
    for index, finding in enumerate(report.findings, start=1):
        blocks += finding_blocks(index, finding, report)
    return "\n\n".join([*blocks, *notes_blocks(report)])


def head_blocks(report: model.Report) -> list[str]:
    """The first blocks: headline, caption, first finding, breakdown and key numbers."""
    steps = max(report.overview.steps, 1)
    breakdown = [
        (part.label, format_duration(part.total_ns / steps), format_share(part.share))
        for part in report.overview.breakdown
    ]
    first = first_line(report)
    return [
        f"**{escape(report.headline)}**",
        escape(caption_line(report)),
        *([] if first is None else [f"**First:** {first[0]} ({first[1]})"]),
        *(
            [
                grid(("Where the time goes", "Time", "Share"), breakdown),
                grid(
                    ("Key number", "Value", ""),
                    [(name, value, escape(notes)) for name, value, notes in number_rows(report)],
                ),
            ]
            if report.overview.window_ns
            else []
        ),
        *_program(report.workload),
    ]


def _program(workload: model.WorkloadInfo) -> list[str]:
    rows = [(fact.part, escape(fact.evidence)) for fact in workload.evidence]
    return [grid(("Part of the program", "Seen in the profile"), rows)] if rows else []


def notes_blocks(report: model.Report) -> list[str]:
    """The notes on the profile; empty if there are none."""
    lines = [
        f"- **{note.id}**: {escape(note.message)} {escape(note.remedy)}".rstrip()
        for note in report.notes
    ]
    return ["## Notes on the profile", "\n".join(lines)] if lines else []


def finding_blocks(index: int, finding: model.FindingInfo, report: model.Report) -> list[str]:
    """The blocks of one finding: evidence, remedies, when to ignore it, and how to verify it."""
    blocks = [
        f"## {index}. {finding.title}",
        f"`{finding.rule_id}` · {finding.severity} · {saving_text(finding.saving, report)}",
        escape(finding.summary),
    ]
    tables = [item for item in finding.evidence if isinstance(item, model.TableEvidence)]
    for table in tables[:1]:
        rows = [
            tuple(
                escape(format_cell(cell, column.unit))
                for cell, column in zip(row, table.columns, strict=True)
            )
            for row in table.rows[:_EVIDENCE_ROWS]
        ]
        blocks.append(grid(tuple(column.label for column in table.columns), rows))
    for remedy in finding.remedies:
        blocks.append(remedy.text)
        if remedy.snippet:
            blocks.append(f"```{remedy.language}\n{remedy.snippet}\n```")
    blocks.append(f"*When to ignore:* {finding.when_to_ignore}")
    blocks.append(f"*How to verify:* {finding.how_to_verify}")
    return blocks


def grid(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table whose cells are Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)
