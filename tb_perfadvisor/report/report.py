"""The report in Python: the contract's fields, and what a notebook does with them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.names import report_name
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.report.formats.render import document, render
from tb_perfadvisor.units import format_bytes

HEIGHT = 900
"""Of a frame, in pixels: the first screen of a report."""


class Page(Struct, frozen=True):
    """An HTML page that notebooks display as the last value of a cell."""

    text: str
    """The page as HTML, as `analyze --format html` writes it."""
    height: int

    def __repr__(self) -> str:
        """A line for where HTML cannot be displayed."""
        return f"<Perf Advisor page, {format_bytes(len(self.text.encode()))} of HTML in .text>"

    def _repr_html_(self) -> str:
        """The page in a frame that can reach neither the notebook nor a network."""
        from html import escape  # the command line shows no frames

        # Inline the page: Colab and VS Code may display outputs on another machine than the kernel.
        return (
            f'<iframe title="Perf Advisor" sandbox="allow-scripts" '
            f'style="width: 100%; height: {self.height:d}px; border: 0" '
            f'srcdoc="{escape(self.text)}"></iframe>'
        )


def page_of(
    reports: Sequence[model.Report], rejected: Sequence[model.Rejected] = (), height: int = HEIGHT
) -> Page:
    """The tab's page with some reports.

    `height` is in pixels.
    """
    return Page(render(document(reports, rejected), "html"), height)


_MOST_FINDINGS = 5
_STYLE = "text-align: left; padding: 2px 12px 2px 0"


class Report(model.Report, frozen=True, kw_only=True):
    """Everything found in one capture. `model.Report` describes the fields."""

    def __repr__(self) -> str:
        """The name, the headline and the number of findings, on one line."""
        count = len(self.findings)
        findings = f"{count} finding{'' if count == 1 else 's'}"
        return f"<Report {report_name(self)}: {self.headline} ({findings})>"

    def _repr_html_(self) -> str:
        """The headline and the first findings, for the last value of a notebook's cell."""
        from html import escape  # the command line shows no cells

        from tb_perfadvisor.report.formats.wording import (
            branches_of,
            caption_line,
            trust_in_short,
            worth_text,
        )

        rows = [
            (f"{entry.number}. {entry.title}", worth_text(entry.finding, self))
            for branch in branches_of(self)
            for entry in (branch.entry, *branch.refined)
        ]
        more = len(rows) - _MOST_FINDINGS
        table = "".join(
            f'<tr><td style="{_STYLE}">{escape(title)}</td>'
            f'<td style="{_STYLE}">{escape(saving)}</td></tr>'
            for title, saving in rows[:_MOST_FINDINGS]
        )
        return (
            f"<div><strong>{escape(self.headline)}</strong><br>"
            f"{escape(f'{trust_in_short(self)} {caption_line(self)}'.strip())}"
            f"<table>{table}</table>"
            + (f"… and {more} more. " if more > 0 else "")
            + "<code>report.show()</code> shows the whole report.</div>"
        )

    def show(self, height: int = HEIGHT) -> Page:
        """The report as a page, which a notebook displays.

        The page has charts and timelines if the report was made with them:
        `analyze(path, Config(with_views=True, with_timelines=True))`.

        Args:
            height: Height of the frame, in pixels.

        Raises:
            UsageError: If the tab's bundle is not installed.
        """
        return page_of([self], height=height)

    def to_frame(self, table: str = "findings") -> Any:
        """A table of this report as a `pandas.DataFrame`, with the columns of `analyze --tables`.

        Times are nanoseconds, of findings per step; shares are 0-1. They are missing (NaN) where
        they are unknown. The index of a finding is its place in `findings`.

        Args:
            table: `captures` or `findings`; if the report was made with views, also `steps`,
                `kernels` or `operators`.

        Raises:
            UsageError: If pandas is not installed, or the report has no such table.
        """
        from tb_perfadvisor.report.tables import table_of  # imports all views

        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise UsageError(
                "needs pandas, which is not installed.",
                where="Report.to_frame",
                hint="Install it with `pip install pandas`, or use `Report.findings`.",
            ) from error
        found = table_of([self], table)
        return pandas.DataFrame(found.rows, columns=list(found.columns))
