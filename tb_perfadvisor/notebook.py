"""Shows reports in a notebook cell, without a server."""

from __future__ import annotations

import html
import os

from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.api import analyze_all, nothing_found
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.errors import NothingFoundError
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.report import Report, document
from tb_perfadvisor.report.formats.render import render
from tb_perfadvisor.report.model import Rejected
from tb_perfadvisor.units import format_bytes


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


def show(
    logdir: str | os.PathLike[str], config: Config | None = None, *, height: int = 900
) -> Page:
    """Show the reports of a log directory in Jupyter, Colab or VS Code, inline.

    Args:
        logdir: A logdir, a run or one file, local or by URL.
        config: Which rules to run, and their limits.
        height: Height of the frame, in pixels.

    Returns:
        The page, which the notebook displays; `.text` is its HTML.

    Raises:
        NothingFoundError: If there is no readable profile.
    """
    settings = replace(config or Config(), with_views=True, with_timelines=True)
    listing = discover(logdir)
    if not listing.captures:
        raise nothing_found(logdir, listing)
    reports: list[Report] = []
    rejected = [Rejected(path=file.path, reason=file.reason) for file in listing.rejected]
    for result in analyze_all(listing, listing.captures, settings):
        if isinstance(result, Report):
            reports.append(result)
        else:
            rejected.append(result)
    if not reports:
        reasons = " ".join(f"{file.path}: {file.reason}" for file in rejected[:3])
        raise NothingFoundError(f"contains no readable profile. {reasons}", where=str(logdir))
    return Page(render(document(reports, rejected), "html"), height)
