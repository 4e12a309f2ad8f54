"""What a user says about a finding."""

from __future__ import annotations

from msgspec import Struct

MOST_CHARACTERS = 1000
"""A few sentences. What needs more has a place of its own."""


class Remark(Struct, frozen=True):
    """A user's remark on a finding of a run, which holds for all recordings of it."""

    finding: str
    """Its rule, and a number if the rule has several findings: `slow-batch~2`."""
    wont_fix: bool = False
    """Whether the user decided against the change."""
    text: str = ""
    run: str = ""
    """The name of the run; empty for every run."""
