"""Remarks on a profile, and on the machine that shows it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

NoteSeverity = Literal["info", "warning", "error"]


class Note(Struct, frozen=True):
    """A remark on the profile itself or its surroundings, as opposed to a finding."""

    id: str
    severity: NoteSeverity
    message: str
    remedy: str = ""
