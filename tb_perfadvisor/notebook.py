"""Shows reports in a notebook cell, without a server."""

from __future__ import annotations

import os

from msgspec.structs import replace

from tb_perfadvisor.api import analyze_below
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.page import HEIGHT, Page, page_of


def show(
    logdir: str | os.PathLike[str], config: Config | None = None, *, height: int = HEIGHT
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
    return page_of(*analyze_below(logdir, settings), height)
