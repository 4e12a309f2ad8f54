"""The table of several captures with which a text document begins."""

from __future__ import annotations

from collections import Counter

from rich.table import Table
from rich.text import Text

from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.run_row import RunRow, report_name, run_row
from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.report.captions import framework_name
from tb_perfadvisor.report.formats.wrapped_text import WrappedText
from tb_perfadvisor.units import format_duration, format_share

SEVERITY_STYLE = {"high": "bold red", "medium": "yellow", "low": "dim"}
_NOTHING = "–"
_RUN_WIDTH = 32
"""Longer names wrap, to leave room for the change."""


def overview_table(reports: list[model.Report]) -> Table:
    """One row for each capture: its step time, and the change to begin with."""
    table = Table(box=None, pad_edge=False)
    longest = max(len(report.run) for report in reports)
    table.add_column("Run", overflow="fold", min_width=min(longest, _RUN_WIDTH))
    table.add_column("Step", justify="right", no_wrap=True)
    table.add_column("First change")
    table.add_column("Saves", justify="right", no_wrap=True)
    table.add_column("Severity", no_wrap=True)
    is_mixed = len({report.framework for report in reports}) > 1
    if is_mixed:
        table.add_column("Framework", no_wrap=True)
    table.add_column("Device")
    runs = Counter(report.run for report in reports)
    for report in reports:
        name = report_name(report) if runs[report.run] > 1 else plain(report.run) or "."
        row = run_row(report)
        table.add_row(
            Text(name, style="bold"),
            WrappedText(
                _NOTHING if row.step_time_ns is None else format_duration(row.step_time_ns)
            ),
            *_first_change(row),
            *((WrappedText(plain(framework_name(row.framework))),) if is_mixed else ()),
            WrappedText(plain(row.device)),
        )
    return table


def _first_change(row: RunRow) -> tuple[WrappedText, WrappedText, Text]:
    """The change to begin with, the share of the step that it saves, and its severity."""
    if row.first_change is None or row.severity is None:
        return WrappedText(plain(row.headline), style="dim"), WrappedText(_NOTHING), Text()
    saves = _NOTHING if row.saves_share is None else format_share(row.saves_share)
    severity = Text(row.severity, style=SEVERITY_STYLE[row.severity])
    return WrappedText(plain(row.first_change)), WrappedText(saves), severity
