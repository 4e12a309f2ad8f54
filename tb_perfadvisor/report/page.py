"""Reports as a page that notebooks display."""

from __future__ import annotations

import html
from collections.abc import Sequence

from msgspec import Struct

from tb_perfadvisor.contract import model
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
        # Inline the page: Colab and VS Code may display outputs on another machine than the kernel.
        return (
            f'<iframe title="Perf Advisor" sandbox="allow-scripts" '
            f'style="width: 100%; height: {self.height:d}px; border: 0" '
            f'srcdoc="{html.escape(self.text)}"></iframe>'
        )


def page_of(
    reports: Sequence[model.Report], rejected: Sequence[model.Rejected] = (), height: int = HEIGHT
) -> Page:
    """The tab's page with some reports.

    `height` is in pixels.
    """
    return Page(render(document(reports, rejected), "html"), height)
