"""How long the steps of a recording take, and whether it got slower, for the table of runs."""

from __future__ import annotations

from typing import Literal

import msgspec

MarkVerdict = Literal["slower", "faster", "inconclusive"]


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How long the steps of a recording take, and what must be equal to compare them."""

    block_ns: list[int]
    """Total times of neighboring steps, in order."""
    block_steps: list[int]
    """How many steps each block has."""
    setup: str
    """The program and the machine, as far as the recording states them."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """How the steps of a recording compare with those of another."""

    base: str
    """The id of the other capture."""
    change_share: float
    """Of the mean step: 0.1 takes a tenth longer."""
    verdict: MarkVerdict
