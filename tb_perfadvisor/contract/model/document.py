"""A report, and the document that holds reports."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tb_perfadvisor.contract.model.findings import CombinedSaving, FindingInfo, FirstFinding
from tb_perfadvisor.contract.model.overview import KeyNumber, Overview, StepsInfo
from tb_perfadvisor.contract.model.whole_run import WholeRunInfo
from tb_perfadvisor.contract.run_row import TrustLevel


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The accelerators of one worker: their kind, and how many are visible and used."""

    kind: str
    name: str
    """Empty if it is unknown."""
    identified_by: str = ""
    """What the device was recognized by, if the profile does not name it; otherwise empty."""
    visible: int
    """How many exist."""
    used: int | None
    """How many ran kernels or collectives; None if the events of the device are missing."""


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """One rank or host."""

    rank: int | None
    host: str
    file: str
    """Relative to the logdir."""
    events: int
    duration_ns: int
    device: DeviceInfo | None


class WorkloadEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the program, and what in the profile proves it."""

    part: str
    evidence: str


class WorkloadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What program was profiled. What is not listed is unknown, not absent."""

    mode: str
    """training, forward only, inference server, or unknown."""
    framework: str
    """The framework on top of the base framework; unknown if no event tells."""
    parallelism: list[str]
    input: list[str]
    compiled: list[str]
    features: list[str]
    evidence: list[WorkloadEvidence]
    script: str | None = None
    """The script that was started, where `perfadvisor run` recorded it."""


class RecordedInfo(msgspec.Struct, frozen=True, kw_only=True):
    """When a profile was recorded, by the clock of its reference worker, in Unix time."""

    start_unix_ns: int
    end_unix_ns: int


class NoteInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Something about the profile itself."""

    id: str
    severity: Literal["info", "warning", "error"]
    message: str
    remedy: str


class TrustReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a report cannot be trusted in full."""

    id: str
    """Of the note that says so."""
    level: TrustLevel
    in_short: str
    """Half a sentence, such as `the file is cut off`."""
    message: str
    remedy: str
    """What to record instead; empty if that is not known."""


class TrustInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How far a report can be trusted.

    A reason lowers trust only if it changes a figure that is shown, or the order of the first
    findings.
    """

    level: TrustLevel
    """`limited`: some figures are off or unknown. `do not act`: record again first."""
    reasons: list[TrustReason]
    """The gravest first; empty if the report is solid."""


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


SCHEMA_VERSION = 1


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything found in one capture."""

    id: str
    run: str
    session: str
    framework: str
    formats: list[str]
    is_synthetic: bool
    world_size: int | None
    reference_worker: int
    """Index into `workers`."""
    caption: str
    """What was profiled: framework, device, rank and steps."""
    workload: WorkloadInfo
    workers: list[Worker]
    steps: StepsInfo
    overview: Overview
    key_numbers: list[KeyNumber]
    """The most telling numbers of the overview, in the order in which to show them."""
    headline: str
    """What matters most, in one sentence."""
    headline_without_changes: str = ""
    """What it is if the user decided against every finding."""
    trust: TrustInfo = TrustInfo(level="solid", reasons=[])
    """How far all of this can be trusted."""
    first: FirstFinding | None
    """The top-ranked finding, or one that refines it and saves nearly as much."""
    findings: list[FindingInfo]
    """Best first."""
    combined_saving: CombinedSaving | None
    """Nothing is expected of findings without a price, but they have a high end. None if no finding
    says what it may save at most: then that is unknown, not zero."""
    outcomes: list[Outcome]
    missing_signals: list[Missing]
    """What outcomes name as missing, each once."""
    not_checked: list[RecordingGap]
    """What to record so that more checks can run. Checks that cannot concern this program are not
    listed."""
    blind_spot: BlindSpotInfo | None = None
    """None if enough checks could run for their silence to mean something."""
    is_start_up: bool
    """Whether the profile mostly shows what happens only once, so that its findings say little."""
    notes: list[NoteInfo]
    recorded: RecordedInfo | None = None
    """None if the profile does not tell."""
    whole_run: WholeRunInfo | None = None
    """None if the run logged no scalars around the recording. They change while it trains, so they
    are added when a report is shown, and never stored with it."""
    available_views: list[str] = []
    """The names of the views that this report has, so that their pages are shown."""
    views: dict[str, Any] | None = None
    """The views by name, if requested (`--views`): see `report/views`."""


class Generator(msgspec.Struct, frozen=True, kw_only=True):
    """The program that made the document."""

    name: str
    version: str


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was not read, and why."""

    path: str
    reason: str


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What `perfadvisor analyze --format json` prints."""

    schema_version: int
    generator: Generator
    reports: list[Report]
    rejected: list[Rejected]
    rejected_truncated: int = 0
    """How many more files were not read; `perfadvisor doctor --all` lists them."""
