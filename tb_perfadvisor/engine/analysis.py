"""What an analysis decided about one capture: its types. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct

from tb_perfadvisor.note import Note
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Finding, Severity
from tb_perfadvisor.signals import Missing, Signals
from tb_perfadvisor.signals.recording.needs import RECORDABLE
from tb_perfadvisor.trace.intervals import EMPTY, Intervals

Progress = Callable[[str, float], None]
"""Called with the current stage and the share that is done (0-1)."""

Status = Literal["found", "passed", "not_applicable", "failed"]


class RuleOutcome(Struct, frozen=True):
    """What became of one rule on one worker."""

    rule: Rule
    status: Status
    findings: tuple[Finding, ...]
    missing: tuple[Missing, ...]
    reason: str | None
    elapsed_ms: float

    @property
    def lacks_recording(self) -> bool:
        """Whether another recording of the same program would let the rule run."""
        return bool(self.missing) and all(
            missing.need in RECORDABLE and missing.remedy for missing in self.missing
        )


class BlindSpot(Struct, frozen=True):
    """Why finding little says little: few of the checks that concern the program could run."""

    looked: int
    """How many checks ran."""
    checks: int
    """How many concern the program, as far as the recording tells."""
    reason: str
    """Why most of the others could not run."""


TrustLevel = Literal["solid", "limited", "do not act"]


class TrustReason(Struct, frozen=True):
    """Why a report is not to be trusted in full."""

    id: str
    """Of the note that says it."""
    level: TrustLevel
    in_short: str
    """For headlines, after "because": `the file is cut off`."""
    message: str
    remedy: str
    """What to record instead."""


class Trust(Struct, frozen=True):
    """How far a report can be trusted."""

    level: TrustLevel = "solid"
    reasons: tuple[TrustReason, ...] = ()
    """The gravest first; empty if the report is solid."""


SOLID = Trust()


class RankedFinding(Struct, frozen=True):
    """A finding in the ranked list. Times are totals over the used window."""

    rule: Rule
    finding: Finding
    severity: Severity
    marginal_ns: int
    refines: str | None
    """Id of the rule whose finding it is nested under; None when that rule found nothing."""
    is_group: bool = False
    """Whether a finding that refines this one is the better advice."""

    @property
    def title(self) -> str:
        """What the finding says in a line, with what it is about in this program."""
        if self.finding.title or not self.finding.instance:
            return self.finding.title or self.rule.title
        return f"{self.rule.title}: {self.finding.instance}"

    @property
    def claims(self) -> Intervals:
        """The time that its saving is taken from; empty without a saving."""
        return EMPTY if self.finding.saving is None else self.finding.saving.claims

    @property
    def saves_nothing(self) -> bool:
        """Whether it is expected to save nothing; False without an estimate."""
        saving = self.finding.saving
        return saving is not None and saving.expected_ns == 0 and self.marginal_ns == 0


class CombinedSaving(Struct, frozen=True):
    """All findings together: totals over the used window."""

    low_ns: int
    expected_ns: int
    high_ns: int


class Analysis(Struct, frozen=True):
    """What was found in one capture. Savings are totals over the used window."""

    signals: Signals
    """Of the reference worker."""
    outcomes: tuple[RuleOutcome, ...]
    findings: tuple[RankedFinding, ...]
    """Best first; a finding that refines another one follows it."""
    first: int | None
    """Index of the finding to begin with; None when nothing was found, or if the profile shows
    start-up and is better recorded again."""
    combined: CombinedSaving | None
    """None when no finding has a saving."""
    notes: tuple[Note, ...]
    """On the profile itself."""
    headline: str
    leaders: frozenset[int] = frozenset()
    """Indices of the findings that their groups begin with."""
    headlines: Mapping[int, str] = {}
    """The headline if the analysis began with a finding, for general findings and leaders."""
    headline_without_changes: str = ""
    """The headline if no finding were left."""
    is_start_up: bool = False
    """Whether the profile shows a program that starts up, in place of one at work."""
    trust: Trust = SOLID
    blind_spot: BlindSpot | None = None
    """None if enough checks could run."""
