"""A report, and the document that holds reports."""

from __future__ import annotations

from typing import Any

import msgspec

from tb_perfadvisor.contract.model.checks import BlindSpotInfo, Missing, Outcome, RecordingGap
from tb_perfadvisor.contract.model.findings import CombinedSaving, FindingInfo, FirstFinding
from tb_perfadvisor.contract.model.overview import KeyNumber, Overview, StepsInfo
from tb_perfadvisor.contract.model.profile import (
    NoteInfo,
    RecordedInfo,
    TrustInfo,
    Worker,
    WorkloadInfo,
)
from tb_perfadvisor.contract.model.whole_run import WholeRunInfo

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
