"""The version. A literal, because looking up the installed package takes longer than a report."""

from typing import Final

VERSION: Final = "0.1.0"
