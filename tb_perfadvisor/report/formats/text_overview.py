"""The table of several captures with which a text document begins."""

from __future__ import annotations

from collections import Counter

from rich.table import Table
from rich.text import Text

from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.report import model
from tb_perfadvisor.report.formats.wording import report_name
from tb_perfadvisor.report.formats.wrapped_text import WrappedText
from tb_perfadvisor.units import format_duration, format_share

SEVERITY_STYLE = {"high": "bold red", "medium": "yellow", "low": "dim"}
_NOTHING = "–"


def overview_table(reports: list[model.Report]) -> Table:
    """One row for each capture: its step time, and the change to begin with."""
    table = Table(box=None, pad_edge=False)
    table.add_column("Run", overflow="fold")
    table.add_column("Device")
    table.add_column("Step", justify="right", no_wrap=True)
    table.add_column("First change")
    table.add_column("Saves", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    runs = Counter(report.run for report in reports)
    for report in reports:
        name = report_name(report) if runs[report.run] > 1 else plain(report.run) or "."
        table.add_row(
            Text(name, style="bold"),
            WrappedText(_device(report)),
            WrappedText(_step_time(report)),
            *_first_change(report),
        )
    return table


def _device(report: model.Report) -> str:
    device = report.workers[report.reference_worker].device
    if device is None:
        return "CPU"
    name = plain(device.name) or device.kind.upper()
    count = sum(worker.device.used or 0 for worker in report.workers if worker.device is not None)
    return f"{count} × {name}" if count > 1 else name


def _step_time(report: model.Report) -> str:
    step_ns = report.overview.step_time_ns
    return _NOTHING if step_ns is None else format_duration(step_ns)


def _first_change(report: model.Report) -> tuple[WrappedText, WrappedText, Text]:
    """The change to begin with, the share of the step that it saves, and its severity."""
    if report.first is None:
        return WrappedText("nothing stands out", style="dim"), WrappedText(_NOTHING), Text()
    finding = report.findings[report.first.index]
    saves = _NOTHING if finding.saving is None else format_share(finding.saving.share_expected)
    severity = Text(finding.severity, style=SEVERITY_STYLE[finding.severity])
    return WrappedText(plain(finding.title)), WrappedText(saves), severity
