"""Which captures of a listing a command is about."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tb_perfadvisor.cli.terminal import note
from tb_perfadvisor.errors import UsageError

if TYPE_CHECKING:
    from tb_perfadvisor.ingest.discovery import Capture, Listing


def matching(listing: Listing, run: str | None) -> tuple[Capture, ...]:
    """The captures whose run matches a regular expression.

    Raises:
        UsageError: When none does, or it is no regular expression.
    """
    if run is None:
        return listing.captures
    captures = tuple(one for one in listing.captures if _pattern(run).search(one.run))
    if not captures and listing.captures:
        raise UsageError(
            f"no run matches {run!r}.",
            hint="Runs: " + ", ".join(sorted({one.run or "." for one in listing.captures})),
        )
    return captures


def note_gaps(path: str, listing: Listing) -> None:
    """Say what was not looked through."""
    if listing.gaps:
        note(
            f"{path} was not looked through to its end: {'; '.join(listing.gaps)}. "
            "Name a directory nearer to the profiles to see all."
        )


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"--run {text!r} is no regular expression: {error}.") from error
