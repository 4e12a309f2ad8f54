"""The types of the view of a whole run. They stand in `schema.json` beside the report's."""

from __future__ import annotations

import msgspec

from tb_perfadvisor.report.model import WholeRunInfo


class DelayInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Time beyond that of usual steps, by reason."""

    reason: str
    """start, restart, evaluation, recording, pause or slower."""
    label: str
    count: int
    cost_ns: int
    share: float
    """Of the run."""
    first_step: int
    last_step: int


class RecordingInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A profile of the run."""

    capture_id: str
    session: str
    first_step: int | None
    """Where the run was; None if it logged nothing around the recording."""
    sentence: str
    whole_run: WholeRunInfo | None
    """What its report says about the run; None if nothing was logged around it."""


class UnknownProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A profile of the run whose place in it is unknown, and why."""

    capture_id: str
    session: str
    reason: str


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Time per step over the run; columns of equal length. Of many intervals, the extremes."""

    step: list[int]
    """The first of each interval."""
    last_step: list[int]
    per_step_ns: list[int]
    reason: list[str]
    """As in `DelayInfo`; empty for usual intervals."""
    part: list[int]
    """How often the run had restarted before."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A logged value over steps; columns of equal length. Of many points, the extremes."""

    label: str
    tag: str
    unit: str
    """samples/s, tokens/s or empty."""
    per_device: bool | None
    """Whether a rate is that of one device; None if unknown or no rate."""
    step: list[int]
    value: list[float]


class TrainingView(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run, by its scalars."""

    run: str
    headline: str
    facts: list[str]
    unit: str
    """step or epoch."""
    step_ns: int
    """Usual time per step, without the profiler."""
    elapsed_ns: int
    delays: list[DelayInfo]
    """The costliest first."""
    recordings: list[RecordingInfo]
    """In order of time."""
    unknown_profiles: list[UnknownProfile]
    times: StepTimes
    loss: Curve | None
    rates: list[Curve]
    devices: int | None
    """That the run used, by its profiles."""
