"""Time lines as they are stored and sent."""

from __future__ import annotations

import msgspec

from tb_perfadvisor.contract.model.comparison import (
    ComparedRun,
    FindingChange,
    FindingState,
    PredictedSaving,
    TimeChange,
    Verdict,
)
from tb_perfadvisor.contract.model.document import Generator
from tb_perfadvisor.contract.run_row import Severity


class Occurrence(msgspec.Struct, frozen=True, kw_only=True):
    """A finding from the recording in which it came to the one in which it was gone.

    Recordings are given by their index. Light recordings show less, so a rule may be unable to
    check some of those between.
    """

    absent_before: int | None
    """The last recording before it that was checked; null if none was."""
    first: int
    last: int
    """The last recording that has it."""
    gone: int | None
    """The first recording after it that was checked; null if none was."""
    saving: PredictedSaving | None
    """Of one step, by the last recording that has it."""
    verdict: Verdict | None
    """Of the recording in which it was gone, compared with the last that has it."""
    change: FindingChange | None
    """The predicted and the achieved saving; null while it lasts, and if the two recordings are not
    comparable."""


class FindingHistory(msgspec.Struct, frozen=True, kw_only=True):
    """One rule's findings over the recordings of a run."""

    rule_id: str
    title: str
    refines: str | None
    """The rule of the finding that it was last a part of."""
    states: list[FindingState]
    """One for each recording."""
    expected_ns: list[int | None]
    """The expected saving per step in each recording; null without one."""
    severities: list[Severity | None]
    """In each recording; null where it was not found."""
    occurrences: list[Occurrence]


class CauseTime(msgspec.Struct, frozen=True, kw_only=True):
    """One cause's part of a step; the parts sum exactly to it."""

    cause: str
    label: str
    per_step_ns: int


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """Where in its run a recording was made, and how long steps usually took there."""

    step: int | None
    """The step of the run: by its directory, else by the scalars of the run."""
    usual_step_ns: int | None
    """Usual time per step around it without the profiler, by the scalars of the run."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """One recording, and what changed since the one before."""

    run: ComparedRun
    recorded: str
    """When, in the form of session names; empty if unknown."""
    moment: Moment
    causes: list[CauseTime]
    """In the order of their precedence; empty without steps."""
    verdict: Verdict | None
    """Compared with the recording before; null for the first."""
    headline: str
    """One sentence about the change; empty for the first recording."""
    change: TimeChange | None
    """Null for the first recording."""
    open_findings: list[str]
    """The rules that find something in this recording, best first."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The recordings of one run, the oldest first."""

    name: str
    verdict: Verdict | None
    """Of the latest recording, compared with the first; null for fewer than two."""
    headline: str
    """One sentence about that change; empty for fewer than two."""
    recordings: list[Recording]
    findings: list[FindingHistory]
    """Those of the latest recordings first."""


class MissingRecording(msgspec.Struct, frozen=True, kw_only=True):
    """A recording of the run that the time line lacks, and why."""

    id: str
    """The capture's."""
    is_new: bool
    """Whether it was not analyzed yet."""
    reason: str


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """The time line of a run as far as its recordings are analyzed."""

    history: History
    missing: list[MissingRecording]
    earlier: int
    """How many recordings are older than those in the view."""


class HistoryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What `perfadvisor history --format json` prints."""

    schema_version: int
    generator: Generator
    histories: list[History]
    notes: list[str]
    """Which recordings were left out, and why."""
