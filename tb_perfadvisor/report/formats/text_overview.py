"""The table of several captures with which a text document begins."""

from __future__ import annotations

from collections import Counter

from rich.console import Group
from rich.padding import Padding
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
_TRUST = {"limited": "limited trust", "do not act": "do not act: record again"}


def overview_table(reports: list[model.Report]) -> Table:
    """For each capture its name with the change to begin with below, step time and saving."""
    table = Table(box=None, pad_edge=False)
    table.add_column("Run, and what to change first", overflow="fold", ratio=1)
    table.add_column("Step", justify="right", no_wrap=True)
    table.add_column("Saves", justify="right", no_wrap=True)
    table.add_column("Severity", no_wrap=True)
    is_mixed = len({report.framework for report in reports}) > 1
    runs = Counter(report.run for report in reports)
    for report in reports:
        name = report_name(report) if runs[report.run] > 1 else plain(report.run) or "."
        row = run_row(report)
        where = [framework_name(row.framework)] if is_mixed else []
        where += [row.device] if row.device else []
        where += [_TRUST[row.trust]] if row.trust != "solid" else []
        table.add_row(
            Group(
                WrappedText(Text.assemble((name, "bold"), f"  {plain(', '.join(where))}")),
                Padding(_first_change(row), (0, 0, 0, 2)),
            ),
            WrappedText(
                _NOTHING if row.step_time_ns is None else format_duration(row.step_time_ns)
            ),
            *_worth(row),
        )
    return table


def _first_change(row: RunRow) -> WrappedText:
    """The change to begin with; otherwise the headline."""
    if row.first_change is None:
        return WrappedText(plain(row.headline), style="dim")
    return WrappedText(plain(row.first_change))


def _worth(row: RunRow) -> tuple[WrappedText, Text]:
    """The share of the step that the change saves, and its severity."""
    if row.first_change is None or row.severity is None:
        return WrappedText(_NOTHING), Text()
    saves = _NOTHING if row.saves_share is None else format_share(row.saves_share)
    return WrappedText(saves), Text(row.severity, style=SEVERITY_STYLE[row.severity])
