"""The outcome of every rule, and what to record so that more can run."""

from __future__ import annotations

from typing import Literal

import msgspec

Status = Literal["found", "passed", "not_applicable", "failed"]


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """A signal that rules need and the profile lacks, and how to record it."""

    signal: str
    reason: str
    remedy: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one rule. What has its default is left out of the JSON."""

    rule_id: str
    status: Status
    missing: list[str] = []
    """The signals that the rule needs and the profile lacks: see the report's `missing_signals`."""
    reason: str | None = None
    """Why the rule failed, or why what it found is not shown."""
    elapsed_ms: float


class RecordingGap(msgspec.Struct, frozen=True, kw_only=True):
    """A change to the recording, and the checks that it would allow."""

    remedy: str
    """How to record what is missing."""
    signals: list[str]
    """What is missing."""
    reasons: list[str]
    """Why the checks could not run."""
    rule_ids: list[str]


class BlindSpotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Why finding little says little: few of the checks that concern the program could run."""

    looked: int
    """How many checks ran."""
    checks: int
    """How many concern the program, as far as the recording tells."""
    reason: str
    """Why most of the others could not run."""
