"""Time lines as text, Markdown and JSON."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from tb_perfadvisor.plain_text import plain, printable_json
from tb_perfadvisor.report.comparison.history import History, HistoryDocument, Recording
from tb_perfadvisor.report.comparison.model import Verdict
from tb_perfadvisor.report.comparison.wording import UNKNOWN, finding_cells, signed
from tb_perfadvisor.report.formats.markdown import escape, grid
from tb_perfadvisor.report.model import SCHEMA_VERSION, Generator
from tb_perfadvisor.units import format_duration, format_share
from tb_perfadvisor.version import VERSION

if TYPE_CHECKING:
    from rich.console import Console

_HEADINGS = ("Recording", "Step", "Change", "Verdict", "Findings")
_CHANGES = ("Finding", "Predicted", "Range", "Achieved", "Now")
_WIDTH = 100
_VERDICTS = {"not_comparable": "not comparable", "no_steps": "no steps"}


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
        rows = [tuple(map(escape, _row(each))) for each in history.recordings]
        blocks += [f"# {escape(history.name)}", grid(_HEADINGS, rows)]
        for recording in history.recordings:
            if recording.findings:
                name = escape(_name(recording))
                rows = [finding_cells(each, _verdict_of(recording)) for each in recording.findings]
                blocks += [f"## {name}", escape(recording.headline), grid(_CHANGES, rows)]
    blocks += [f"- {escape(note)}" for note in content.notes]
    return "\n\n".join(blocks) + "\n"


def _text(content: HistoryDocument) -> str:
    from rich.console import Console

    buffer = io.StringIO()
    print_history(content, Console(file=buffer, width=_WIDTH, no_color=True, highlight=False))
    return buffer.getvalue()


def print_history(content: HistoryDocument, console: Console) -> None:
    """Print time lines: a table of the recordings, and what became of findings."""
    from rich.table import Table
    from rich.text import Text

    for history in content.histories:
        console.print(Text(plain(history.name), style="bold"))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in _HEADINGS:
            table.add_column(heading, overflow="fold")
        for recording in history.recordings:
            table.add_row(*(Text(cell) for cell in _row(recording)))
        console.print(table)
        for recording in history.recordings:
            if recording.findings:
                name = _name(recording)
                console.print(Text(f"\n{name}: {plain(recording.headline)}", style="bold"))
                changes = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
                for heading in _CHANGES:
                    changes.add_column(heading, overflow="fold")
                for finding in recording.findings:
                    changes.add_row(*map(Text, finding_cells(finding, _verdict_of(recording))))
                console.print(changes)


def _name(recording: Recording) -> str:
    """The session of a recording, or its run if each recording is a run of its own."""
    return plain(recording.run.name.rpartition(" / ")[2])


def _row(recording: Recording) -> tuple[str, ...]:
    change = recording.change
    changed = UNKNOWN
    if change is not None and recording.verdict not in ("not_comparable", None):
        share = (
            "" if change.change_share is None else f" ({format_share(abs(change.change_share))})"
        )
        changed = f"{signed(change.change_ns)}{share}"
    findings = recording.open_findings
    more = f" and {len(findings) - 2} more" if len(findings) > 2 else ""
    verdict = recording.verdict
    return (
        _name(recording),
        format_duration(recording.run.step_time_ns),
        changed,
        UNKNOWN if verdict is None else _VERDICTS.get(verdict, verdict),
        ", ".join(findings[:2]) + more or "none",
    )


def _verdict_of(recording: Recording) -> Verdict:
    return recording.verdict or "no_steps"


FORMATS: Mapping[str, Callable[[HistoryDocument], str]] = MappingProxyType(
    {"text": _text, "json": _json, "markdown": _markdown}
)


def render_history(content: HistoryDocument, format: str) -> str:
    """Render time lines in a format of `FORMATS`."""
    return FORMATS[format](content)
