"""Time lines as text, Markdown and JSON."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from tb_perfadvisor.contract.model import (
    SCHEMA_VERSION,
    Generator,
    History,
    HistoryDocument,
    Recording,
)
from tb_perfadvisor.plain_text import plain, printable_json
from tb_perfadvisor.report.formats.comparison.wording import UNKNOWN, finding_cells, signed
from tb_perfadvisor.report.formats.markdown import escape, grid
from tb_perfadvisor.units import format_duration, format_share
from tb_perfadvisor.version import VERSION

if TYPE_CHECKING:
    from rich.console import Console

_FINDINGS = ("Finding", "Came in", "Gone in", "Predicted", "Achieved", "Now")
_WIDTH = 100
_VERDICTS = {"not_comparable": "not comparable", "no_steps": "no steps"}

_Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Headings and rows."""


def history_document(histories: Sequence[History], notes: Sequence[str] = ()) -> HistoryDocument:
    """The document that `history --format json` prints."""
    return HistoryDocument(
        schema_version=SCHEMA_VERSION,
        generator=Generator(name="tb_perfadvisor", version=VERSION),
        histories=list(histories),
        notes=list(notes),
    )


def _json(content: HistoryDocument) -> str:
    return printable_json(msgspec.json.format(msgspec.json.encode(content), indent=2).decode())


def _markdown(content: HistoryDocument) -> str:
    blocks = []
    for history in content.histories:
        blocks += [f"# {escape(history.name)}", escape(history.headline)]
        for title, (headings, rows) in (
            ("## Recordings", _recordings_table(history)),
            ("## Findings", _findings_table(history)),
        ):
            if rows:
                blocks += [title, grid(headings, [tuple(map(escape, row)) for row in rows])]
    blocks += [f"- {escape(note)}" for note in content.notes]
    return "\n\n".join(blocks) + "\n"


def _text(content: HistoryDocument) -> str:
    from rich.console import Console

    buffer = io.StringIO()
    print_history(content, Console(file=buffer, width=_WIDTH, no_color=True, highlight=False))
    return buffer.getvalue()


def print_history(content: HistoryDocument, console: Console) -> None:
    """Print time lines: a table of the recordings, and one of their findings."""
    from rich.table import Table
    from rich.text import Text

    for place, history in enumerate(content.histories):
        if place:
            console.print()
        console.print(Text(plain(history.name), style="bold"))
        console.print(Text(plain(history.headline)))
        for headings, rows in (_recordings_table(history), _findings_table(history)):
            if not rows:
                continue
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
            for heading in headings:
                table.add_column(heading, overflow="fold")
            for row in rows:
                table.add_row(*map(Text, row))
            console.print(table)
            if headings is not _FINDINGS and history.findings:
                console.print()


def _recordings_table(history: History) -> _Table:
    """A row per recording, without columns that are unknown in all of them."""
    columns: list[tuple[str, list[str]]] = [
        ("", [str(place) for place in range(1, len(history.recordings) + 1)]),
        ("Recording", [_name(each) for each in history.recordings]),
    ]
    moments = [each.moment for each in history.recordings]
    if any(moment.step is not None for moment in moments):
        steps = [UNKNOWN if each.step is None else f"{each.step:,}" for each in moments]
        columns.append(("At step", steps))
    columns.append(
        ("Step", [_duration(each.run.step_time_ns) for each in history.recordings]),
    )
    if any(moment.usual_step_ns is not None for moment in moments):
        columns.append(("Unprofiled", [_duration(each.usual_step_ns) for each in moments]))
    columns += [
        ("Change", [_change(each) for each in history.recordings]),
        ("Verdict", [_verdict(each) for each in history.recordings]),
        ("Findings", [str(len(each.open_findings)) for each in history.recordings]),
    ]
    return tuple(name for name, _ in columns), list(
        zip(*(cells for _, cells in columns), strict=True)
    )


def _findings_table(history: History) -> _Table:
    """A row for each time a finding came: until when it lasted, and what its end achieved."""
    rows: list[tuple[str, ...]] = []
    for finding in history.findings:
        for occurrence in finding.occurrences:
            # It may have been there long before, if no earlier recording shows that it was not.
            came = "" if occurrence.absent_before is not None else "by "
            came += str(occurrence.first + 1)
            gone = UNKNOWN if occurrence.gone is None else str(occurrence.gone + 1)
            if occurrence.change is not None:
                _, predicted, _, achieved, state = finding_cells(occurrence.change)
            else:
                saving, achieved = occurrence.saving, UNKNOWN
                predicted = UNKNOWN if saving is None else format_duration(saving.expected_ns)
                state = "open" if occurrence.gone is None else "gone"
            rows.append((finding.rule_id, came, gone, predicted, achieved, state))
    return _FINDINGS, rows


def _name(recording: Recording) -> str:
    """When a recording was made, or its run if each recording is a run of its own."""
    name = recording.run.name.rpartition(" / ")[2]
    if name == recording.recorded:  # a session that is named by its time
        date, time = name[:10].replace("_", "-"), name[11:19].replace("_", ":")
        return f"{date} {time}"
    return plain(name)


def _duration(duration_ns: int | None) -> str:
    return UNKNOWN if duration_ns is None else format_duration(duration_ns)


def _change(recording: Recording) -> str:
    change = recording.change
    if change is None or recording.verdict in ("not_comparable", None):
        return UNKNOWN
    share = "" if change.change_share is None else f" ({format_share(abs(change.change_share))})"
    return f"{signed(change.change_ns)}{share}"


def _verdict(recording: Recording) -> str:
    verdict = recording.verdict
    return UNKNOWN if verdict is None else _VERDICTS.get(verdict, verdict)


FORMATS: Mapping[str, Callable[[HistoryDocument], str]] = MappingProxyType(
    {"text": _text, "json": _json, "markdown": _markdown}
)


def render_history(content: HistoryDocument, format: str) -> str:
    """Render time lines in a format of `FORMATS`."""
    return FORMATS[format](content)
