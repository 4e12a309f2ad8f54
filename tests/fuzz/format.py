"""What a format tells the fuzzer: its valid files, how to damage them, and what must hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Protocol

from msgspec import Struct

from tests.fuzz.report_checks import check_reports

Change = Callable[[bytes, Random], bytes]
"""Damages what is in a file: `change_json`, `change_message`, or a function of the format's own.

It gets the whole file, and keeps its framing valid, so that the damage reaches the code behind.
"""


class SeedFile(Struct, frozen=True):
    """A valid file."""

    path: str
    """Relative to the log directory; says which format it is."""
    data: bytes
    change: Change


Files = tuple[SeedFile, ...]
"""The files of a log directory."""


class Check(Protocol):
    """Reads a log directory and checks what comes of it."""

    def __call__(self, root: Path, *, exports: bool) -> int:
        """Return the number of results; raise whatever was raised unless it is meant for users.

        Args:
            root: The log directory.
            exports: Whether to write and check all outputs, too. Costs more; asked of one case in
                fifty.
        """
        ...


class Format(Struct, frozen=True):
    """A format that is damaged."""

    name: str
    """In kebab case; chooses the format on the command line."""
    choose: Callable[[Random], Files]
    """One of the valid inputs. They should be small: a case costs what its analysis costs."""
    check: Check = check_reports
    weight: int = 1
    """How many cases it gets, relative to the other formats."""
    may_be_packed: bool = True
    """Whether a file may also be compressed or inside an archive."""
    always_has_results: bool = True
    """Whether each valid input gives a report."""
