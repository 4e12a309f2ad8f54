"""Text for a terminal whose lines break between words, never inside a quantity."""

from __future__ import annotations

import re

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

# The blanks of `70.4 ms`, `14.7 %`, `1.50 GiB`, `450 GB/s` and `< 0.1 %`.
_INSIDE = re.compile(
    r"(?<=\d) (?=(?:%|[nµm]?s|[KMGTP]iB|[kMGTP]?(?:B(?:/s)?|FLOP/s))(?![\w/]))|(?<=[<>]) (?=-?\d)"
)
# One column wide, no white space, and in no text: Unicode keeps it free of meaning.
_JOINED = "\ufdd0"


class WrappedText:
    """Text that keeps a number and its unit on one line.

    A no-break space would not do: rich breaks lines at every kind of white space.
    """

    def __init__(self, text: str | Text = "", style: str = "") -> None:
        """Take the text, which may have styles of its own."""
        self._text = text.copy() if isinstance(text, Text) else Text(text, style)
        self._text.plain = _INSIDE.sub(_JOINED, self._text.plain)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Its lines, wrapped to the width there is."""
        for segment in self._text.__rich_console__(console, options):
            yield Segment(segment.text.replace(_JOINED, " "), segment.style, segment.control)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """The narrowest and widest that it can be: a quantity is as wide as it is long."""
        return self._text.__rich_measure__(console, options)
