"""Wording and formatting of reports, shared by all text formats."""

from __future__ import annotations

import unicodedata

from tb_perfadvisor.report import model
from tb_perfadvisor.units import format_bytes, format_duration, format_rate, format_share


def plain(text: str) -> str:
    """Text of a trace made safe to print: without control characters, which terminals obey."""
    return "".join(
        character if unicodedata.category(character)[0] != "C" else "\N{REPLACEMENT CHARACTER}"
        for character in text
    )


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


def key_numbers(report: model.Report) -> list[tuple[str, str]]:
    """The names and values of the key numbers."""
    overview = report.overview
    rows = [("Step time", format_duration(overview.step_time_ns))]
    on_device = [
        ("Device compute", format_share(overview.device_compute_share)),
        ("Device busy", format_share(overview.device_busy_share)),
        (
            "Device busy, from first to last device event",
            format_share(overview.device_busy_share_of_span),
        ),
        ("Operators on the device, by time", format_share(overview.operators.device_share_by_time)),
        (
            "Operators on the device, by count",
            format_share(overview.operators.device_share_by_count),
        ),
        ("16-bit share of compute", format_share(sixteen_bit_share(report.overview))),
    ]
    if report.workers[report.reference_worker].device is not None:
        rows += on_device
    rows += [
        ("Waiting for input", format_share(overview.input_wait_share)),
        ("Exposed communication", format_share(overview.exposed_communication_share)),
        ("Between steps", format_share(overview.between_steps_share)),
    ]
    if overview.memory is not None:
        peak = overview.memory.peak_allocated_bytes
        rows.append(("Peak allocated memory", format_bytes(peak)))
    return rows


def sixteen_bit_share(overview: model.Overview) -> float | None:
    """The share of compute in 16 bits; None if no kernel's precision is known."""
    precision = overview.precision
    return precision["16"] if precision and precision["unknown"] < 1 else None
