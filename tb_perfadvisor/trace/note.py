"""Remarks on a profile."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

NoteSeverity = Literal["info", "warning", "error"]


class Note(Struct, frozen=True):
    """A remark on the profile itself, as opposed to a finding about the program."""

    id: str
    severity: NoteSeverity
    message: str
    remedy: str = ""
