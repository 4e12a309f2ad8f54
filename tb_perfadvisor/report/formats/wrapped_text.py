"""Text for a terminal, wrapped between words but never inside a quantity."""

from __future__ import annotations

import re

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

# The spaces in `70.4 ms`, `14.7 %`, `1.50 GiB`, `450 GB/s` and `< 0.1 %`.
_SPACE_IN_QUANTITY = re.compile(
    r"(?<=\d) (?=(?:%|[nµm]?s|[KMGTP]iB|[kMGTP]?(?:B(?:/s)?|FLOP/s))(?![\w/]))|(?<=[<>]) (?=-?\d)"
)
# A Unicode noncharacter: one column wide, not a space, and never part of a text.
_PLACEHOLDER = "\ufdd0"


class WrappedText:
    """Text that keeps a number and its unit on one line.

    A no-break space does not help, because rich breaks lines at any white space.
    """

    def __init__(self, text: str | Text = "", style: str = "") -> None:
        self._text = text.copy() if isinstance(text, Text) else Text(text, style)
        self._text.plain = _SPACE_IN_QUANTITY.sub(_PLACEHOLDER, self._text.plain)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines, wrapped to the available width."""
        for segment in self._text.__rich_console__(console, options):
            yield Segment(segment.text.replace(_PLACEHOLDER, " "), segment.style, segment.control)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """The minimum and maximum width."""
        return self._text.__rich_measure__(console, options)
