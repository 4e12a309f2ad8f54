"""Findings: what to change, what it saves, and where."""

from __future__ import annotations

from typing import Literal

import msgspec

from tb_perfadvisor.contract.run_row import Severity

Cell = str | int | float | bool | None


class EvidenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the trace."""

    worker: int
    start_ns: int
    duration_ns: int
    cost_ns: int | None = None
    """What it costs, by which the list is ordered; null if that is its duration."""
    track: str
    name: str
    step: int | None
    source: str | None
    """Source line or Python frame."""


class EventsEvidence(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="events"):
    """Events, the costliest first."""

    title: str
    rows: list[EvidenceRow]
    truncated: int


class SpanEvidence(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="span"):
    """A span of time on one track."""

    title: str
    worker: int
    start_ns: int
    end_ns: int
    track: str
    note: str


class TableColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a table; `unit` is ns, bytes, share, count, bytes/s, flop/s or empty."""

    key: str
    label: str
    unit: str


class TableEvidence(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="table"):
    """A table."""

    title: str
    columns: list[TableColumn]
    rows: list[list[Cell]]
    truncated: int


class SeriesEvidence(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="series"):
    """A value over steps or time."""

    title: str
    x_unit: str
    unit: str
    points: list[tuple[float, float]]


Evidence = EventsEvidence | SpanEvidence | TableEvidence | SeriesEvidence


Basis = Literal["measured", "simulated", "modeled", "heuristic"]


class SavingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Wall-clock time per step that a change would save."""

    low_ns: int
    """Negative if the change may make the step longer."""
    expected_ns: int
    high_ns: int
    share_low: float
    share_expected: float
    share_high: float
    marginal_ns: int
    """What it adds to the savings of the findings ranked above it."""
    basis: Basis


class SavingBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a change would save per step at least and at most, where nothing tells how much."""

    high_ns: int
    share_high: float
    low_ns: int = 0


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Where a finding was seen."""

    ranks: list[int]
    first_step: int | None
    last_step: int | None


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """What to change, with the code to write."""

    text: str
    snippet: str | None
    language: str
    framework: str
    reference: str | None
    """URL of the documentation."""
    change: str = ""
    """The id of the change in the catalog of advice (docs/advice.md); empty if it is not of it."""
    fixes: list[str] = []
    """The ids of the fixes of `suggest` that make it."""
    values: dict[str, str | int | float | bool] = {}
    """What text and code are filled in with, and what the fixes get."""
    costs: dict[str, str] = {}
    """What it costs: `accuracy`, `information`, `memory` or `effort`, each with a sentence."""


class SourceExcerpt(msgspec.Struct, frozen=True, kw_only=True):
    """The lines around a place, from the user's repository."""

    path: str | None
    """Relative to the repository; None if several files match."""
    first_line: int | None
    """The number of the first of `lines`; None without lines."""
    lines: list[str]
    link: str | None
    """By the user's URL pattern."""
    candidates: list[str]
    """The files that match equally well, if there are several."""
    note: str
    """What is uncertain: several files match, or the file has changed; otherwise empty."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's code, as the profile names it."""

    file: str
    """The last two parts of its path: `models/net.py`."""
    line: int
    function: str
    """Empty if it is unknown."""
    source: SourceExcerpt | None = None
    """Its code; None if no repository was named, or has no such file."""


class LargerBatchInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that takes about as long: more samples in the same time, not less time per step."""

    rows: int
    """Rows that each step processes now: samples, or positions of all samples."""
    more_rows: int
    low_share: float
    """Share of the time per row that a batch of `more_rows` saves at least."""
    expected_share: float
    high_share: float


class MemorySavingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """By how much a change lowers the peak of allocated device memory."""

    bytes: int
    share: float
    """Of the peak."""


class ProofInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What `perfadvisor try` measured when it made the change, in the program of this recording."""

    change: str
    """The id of the change that was tried."""
    helped: bool
    """Whether the step became shorter, beyond the margin of the test, with the same results."""
    text: str
    """In words: `proved: 18 % faster (16-20 %)`, `did not help here`."""
    low_share: float | None
    """Share of the step that it saves, at 95 % confidence; None if it was refused."""
    share: float | None
    high_share: float | None
    pairs: int
    """How many pairs of runs were compared."""
    tried_unix_s: int


class RemarkInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the user says about a finding of a run."""

    wont_fix: bool
    """Whether the user decided against the change."""
    text: str


class FindingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of advice."""

    rule_id: str
    refines: str | None
    title: str
    heading: str | None
    """The heading of a group: its title without the instance, and `do one of these`. Set if one of
    the findings that refine this one is the better advice; None otherwise."""
    category: str
    severity: Severity
    summary: str
    saving: SavingInfo | None
    bounds: SavingBounds | None = None
    """What it may save, if nothing tells how much of that to expect. Then there is no `saving`."""
    causes: list[str] = []
    """The causes of the time that its saving is taken from, the largest first."""
    larger_batch: LargerBatchInfo | None = None
    """Set if the change brings more samples in the same time."""
    memory_saving: MemorySavingInfo | None = None
    """Set if the change lowers the peak of device memory."""
    scope: Scope
    evidence: list[Evidence]
    places: list[Place] = []
    """The lines of code that it is about, the costliest first; empty if the profile has none."""
    remedies: list[Remedy]
    when_to_ignore: str
    how_to_verify: str
    is_preview: bool
    proof: ProofInfo | None = None
    """None if it was not tried. What was tried changes, so it is added when a report is shown, and
    never stored with it."""
    analyzed_place: int | None = None
    """Its place in the order of the analysis, by which timelines and excerpts name it; None where
    proofs moved nothing."""
    remark: RemarkInfo | None = None
    """None without one. It is added when a report is shown, like `proof`."""
    leads: bool = False
    """Whether its group begins with it: the general finding, or one that refines it and saves
    nearly as much."""
    headline: str = ""
    """What the report says first if it begins with this finding, because the user decided against
    those above it. Empty for findings that refine others, but for those that lead."""

    @property
    def is_set_aside(self) -> bool:
        """Whether the user decided against it."""
        return self.remark is not None and self.remark.wont_fix


class FirstFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The finding to begin with."""

    rule_id: str
    index: int
    """In `findings`."""


class CombinedSaving(msgspec.Struct, frozen=True, kw_only=True):
    """All findings together: their union, never their sum."""

    low_ns: int
    """Negative if a change may make the step longer."""
    expected_ns: int
    high_ns: int
    share_expected: float

    def without(self, marginal_ns: int) -> CombinedSaving:
        """What is left without findings that add so much to those above them."""
        if self.expected_ns <= 0 or marginal_ns <= 0:
            return self
        expected_ns = max(self.expected_ns - marginal_ns, 0)
        left = expected_ns / self.expected_ns
        return CombinedSaving(
            low_ns=round(self.low_ns * left),
            expected_ns=expected_ns,
            high_ns=max(self.high_ns - marginal_ns, expected_ns),
            share_expected=self.share_expected * left,
        )
