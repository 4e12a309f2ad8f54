"""Wording and formatting of reports, shared by all text formats."""

from __future__ import annotations

from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.report import model
from tb_perfadvisor.units import format_bytes, format_duration, format_rate, format_share


def format_cell(cell: model.Cell, unit: str) -> str:
    """A table cell in its column's unit; a dash if unknown."""
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return plain(cell)
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if unit == "ns":
        return format_duration(cell)
    if unit == "bytes":
        return format_bytes(cell)
    if unit == "bytes/s":
        return format_rate(cell, "B/s")
    if unit == "share":
        return format_share(cell)
    if unit == "flop/s":
        return format_rate(cell, "FLOP/s")
    if unit in ("samples/s", "tokens/s"):
        return f"{cell:,.0f}/s" if cell >= 100 else f"{cell:,.3g}/s"
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.3g}"


def saving_text(saving: model.SavingInfo | None, report: model.Report) -> str:
    """The saving of a finding: `saves 26.1 ms per step (14.7 %), measured`."""
    if saving is None:
        return "saving not estimated"
    low, high = format_duration(saving.low_ns), format_duration(saving.high_ns)
    span = f", between {low} and {high}" if low != high else ""
    return (
        f"saves {format_duration(saving.expected_ns)}"
        f" {'per step' if report.steps.used else 'of the profile'}"
        f" ({format_share(saving.share_expected)}){span}, {saving.basis}"
    )


def report_name(report: model.Report) -> str:
    """The name of a report: its run and session. The root of a logdir has no name."""
    # If the path names a session, run and session are equal: show the name once.
    parts = dict.fromkeys(part for part in (report.run, report.session) if part not in ("", "."))
    return plain(" / ".join(parts)) or "."


def caption_line(report: model.Report) -> str:
    """The caption, and a warning if the profile was not recorded but generated."""
    return plain(report.caption) + (" · synthetic profile" if report.is_synthetic else "")


def first_line(report: model.Report) -> tuple[str, str] | None:
    """The finding to begin with and its place: `finding 2`; None where there is no choice."""
    if report.first is None or len(report.findings) == 1:
        return None
    return report.findings[report.first.index].title, f"finding {report.first.index + 1}"


def number_rows(report: model.Report) -> list[tuple[str, str, str]]:
    """The label, the value and the notes of each key number."""
    return [
        (
            number.label,
            "unknown" if number.value is None else format_cell(number.value, number.unit),
            plain(", ".join([*([f"of {number.of}"] if number.of else []), *number.notes])),
        )
        for number in report.key_numbers
    ]
