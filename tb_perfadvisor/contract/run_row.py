"""What a table of captures shows of one: its row, its pace, and whether it got slower.

The terminal and the tab show the same. The list in the tab needs nothing else of a report.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["high", "medium", "low"]
TrustLevel = Literal["solid", "limited", "do not act"]
MarkVerdict = Literal["slower", "faster", "inconclusive"]


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a capture is, and the change to begin with."""

    framework: str
    device: str
    """`CPU`, or the accelerator with the number in use: `8 × NVIDIA H100`."""
    is_synthetic: bool
    step_time_ns: int | None
    """Mean; null without steps."""
    headline: str
    first_change: str | None
    """The title of the finding to begin with; null without findings."""
    finding: str | None
    """That finding in the tab's links: its rule, and a number if the rule has several findings."""
    saves_share: float | None
    """The share of the step that it is expected to save."""
    severity: Severity | None
    trust: TrustLevel = "solid"
    program: str = ""
    """Its script, or what it does if the profile names none: `training`."""
    set_aside: int = 0
    """How many findings the user decided against. They are not the change to begin with."""


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
