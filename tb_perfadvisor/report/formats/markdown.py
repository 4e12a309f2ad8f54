"""Renders reports as Markdown, for pull requests, wikis and TensorBoard's Text tab."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.names import report_name
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.plain_text import plain
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
    rejected_lines,
    remaining_notes,
    saving_line,
    source_lines,
    steps_left_out,
    together_text,
    trust_lines,
)
from tb_perfadvisor.units import format_duration, format_share

# Escaping the colon of an address and the dot after `www` keeps GitHub from adding links.
_SPECIAL = regex(r"([\\`*_{}\[\]<>#|!~$&@]|:(?=//)|(?<=www)\.)", re.IGNORECASE)
# At the start of a line: a list, a rule or the underline of a heading. `1.5 ms` is no list.
_BEGINNING = regex(r"^(\d*)([-+=]|[.)](?!\S))")
_EVIDENCE_ROWS = 10
_MOST_PLACES = 3


def escape(text: str) -> str:
    """Text of a trace, escaped so that Markdown and HTML do not interpret it."""
    words = " ".join(plain(text).split())  # an indented name would become code
    return _BEGINNING.sub(r"\1\\\2", _SPECIAL.sub(r"\\\1", words))


def render_markdown(document: model.Document) -> str:
    """The whole document."""
    blocks = [_report(report) for report in document.reports]
    if document.rejected:
        lines = "\n".join(f"- {escape(line)}" for line in rejected_lines(document))
        blocks.append(f"## Files not read\n\n{lines}")
    return "\n\n".join(blocks) + "\n"


def _report(report: model.Report) -> str:
    blocks = [f"# {escape(report_name(report))}", *head_blocks(report)]
    for branch in branches_of(report):
        blocks += branch_blocks(branch, report)
    return "\n\n".join([*blocks, *notes_blocks(report)])


def head_blocks(report: model.Report) -> list[str]:
    """The first blocks: headline, caption, first finding, breakdown and key numbers."""
    steps = max(report.overview.steps, 1)
    breakdown = [
        (part.label, format_duration(part.total_ns / steps), format_share(part.share))
        for part in report.overview.breakdown
    ]
    together = together_text(report)
    heading, *rows = costliest_rows(report) or [()]
    return [
        f"**{escape(report.headline)}**",
        escape(caption_line(report)),
        *_trust(report),
        *([together] if together else []),
        *([grid(heading, [tuple(map(escape, row)) for row in rows])] if rows else []),
        *([] if report.whole_run is None else [escape(" ".join(report.whole_run.sentences))]),
        *(
            [grid(("Where the time goes", "Time", "Share"), breakdown)]
            if report.overview.window_ns
            else []
        ),
        # A memory snapshot has no time, but numbers.
        *(
            [
                grid(
                    ("Key number", "Value", ""),
                    [(name, value, escape(notes)) for name, value, notes in number_rows(report)],
                )
            ]
            if report.overview.window_ns or report.overview.memory
            else []
        ),
        *_program(report.workload),
    ]


def _trust(report: model.Report) -> list[str]:
    what, *reasons = trust_lines(report) or [""]
    left_out = steps_left_out(report)
    listed = "\n".join(f"- {escape(reason)}" for reason in reasons)
    return [
        *([f"**{escape(what)}**\n\n{listed}"] if reasons else []),
        *([escape(left_out)] if left_out else []),
    ]


def _program(workload: model.WorkloadInfo) -> list[str]:
    rows = [(fact.part, escape(fact.evidence)) for fact in workload.evidence]
    return [grid(("Part of the program", "Seen in the profile"), rows)] if rows else []


def notes_blocks(report: model.Report) -> list[str]:
    """The notes on the profile, and what else to record."""
    blocks = []
    if report.not_checked:
        gaps = "\n".join(
            f"- {escape(gap.remedy)} ({len(gap.rule_ids)}: {escape('; '.join(gap.reasons))})"
            for gap in report.not_checked
        )
        blocks += ["## What another recording would allow to check", gaps]
    notes = "\n".join(
        f"- **{note.id}**: {escape(note.message)} {escape(note.remedy)}".rstrip()
        for note in remaining_notes(report)
    )
    if notes:
        blocks += ["## Notes on the profile", notes]
    if report.outcomes:
        blocks.append("\n".join(escape(line) for line in checks_lines(report)))
    return blocks


def branch_blocks(branch: Branch, report: model.Report) -> list[str]:
    """The blocks of a finding and of those that refine it."""
    is_group = branch.entry.finding.heading is not None
    general = finding_blocks(branch.entry, report, [] if is_group else branch.remedies)
    refined = [
        block
        for entry in branch.refined
        for block in finding_blocks(entry, report, entry.finding.remedies, level=3)
    ]
    return [*general, *refined, *(_remedy_blocks(branch.remedies) if is_group else [])]


def finding_blocks(
    entry: Entry, report: model.Report, remedies: Sequence[model.Remedy], level: int = 2
) -> list[str]:
    """The blocks of one finding: evidence, remedies, when to ignore it, and how to verify it."""
    finding = entry.finding
    saving = saving_line(finding, report)
    severity = [] if finding.heading else [finding.severity]
    blocks = [
        f"{'#' * level} {entry.number}. {escape(entry.title)}",
        " · ".join((f"`{finding.rule_id}`", *severity, saving)),
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
    blocks += _code_blocks(finding)
    blocks += _remedy_blocks(remedies)
    blocks.append(f"*When to ignore:* {finding.when_to_ignore}")
    blocks.append(f"*How to verify:* {finding.how_to_verify}")
    return blocks


def _code_blocks(finding: model.FindingInfo) -> list[str]:
    """The lines of the user's code that a finding is about, if a repository was named."""
    blocks = []
    for place in finding.places[:_MOST_PLACES]:
        if place.source is not None:
            blocks.append(escape(place_line(place)))
            if lines := source_lines(place):
                blocks.append("\n".join(f"    {line}" for line in lines))
    return blocks


def _remedy_blocks(remedies: Sequence[model.Remedy]) -> list[str]:
    blocks = []
    for remedy in remedies:
        blocks.append(remedy.text)
        if remedy.snippet:
            blocks.append(f"```{remedy.language}\n{remedy.snippet}\n```")
    return blocks


def grid(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table whose cells are Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)
