"""What was profiled: the program, its ranks and devices, and what limits the recording."""

from __future__ import annotations

from typing import Literal

import msgspec

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
