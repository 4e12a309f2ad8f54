"""Shows reports in a notebook cell, without a server."""

from __future__ import annotations

import os
import shlex
import sys

from msgspec.structs import replace

from tb_perfadvisor.api.analyses import analyze_below
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.errors import PerfAdvisorError, UsageError
from tb_perfadvisor.report.report import HEIGHT, Page, page_of


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


def perfadvisor(line: str) -> Page | None:
    """Show the reports below a path: `%perfadvisor runs/`.

    Without a path, those below the current directory. An error is one line, without a traceback.
    """
    paths = shlex.split(line) or ["."]
    try:
        if len(paths) > 1:
            raise UsageError("takes one path.", where="%perfadvisor", hint="Quote one with spaces.")
        return show(paths[0])
    except PerfAdvisorError as error:
        print(f"error: {error}", file=sys.stderr)
        return None
