"""What the scalars of a run say: about a profile of it, and about the whole run."""

from __future__ import annotations

import msgspec


class RealSaving(msgspec.Struct, frozen=True, kw_only=True):
    """What all findings together save in a run that is not profiled."""

    low_ns: int
    """Per step, as are the next two."""
    expected_ns: int
    high_ns: int
    logged_ns: int
    """What is expected over the logged steps of the same pace."""
    rest_ns: int | None
    """The same over the steps that are left; None if it is unknown how many, or if the run has
    another pace by now."""


class CostInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a run costs at the price that the user gave, in the currency of that price."""

    price_per_device_hour: float
    devices: int
    """Of all ranks; the ranks of a program that runs on the CPU."""
    per_day: float
    logged: float
    """For the time in which the run logged."""
    saved_per_day: float | None
    """What all findings together are expected to save; None without a saving."""
    per_million_tokens: float | None
    per_million_samples: float | None


class WholeRunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the scalars that the run logged say about the steps that are not profiled."""

    run: str
    """Of the event files."""
    tag: str
    """Whose times were used."""
    step_ns: float
    """Usual time per step around the recording, without the profiler."""
    profiled_step_ns: float
    """Median in the profile."""
    slowdown: float | None
    """How much slower the steps were while recorded: 0.2 is 20 %. None if the profile counts other
    steps."""
    varies_ns: tuple[float, float] | None
    """The range of nine of ten intervals around the recording, if the profile's steps lie in it."""
    first_step: int
    """Of the part of the run in which steps take as long as around the recording."""
    last_step: int
    """Of this part, as far as it was logged."""
    logged_steps: int | None = None
    """That the run took in this part, repeated ones included; null in reports of older versions."""
    is_whole: bool = True
    """Whether this part is the whole run."""
    elapsed_ns: int
    """From the first logged step of the run to the last."""
    steps_left: int | None
    """Of the run. None unless the user said how many there are, or if the run has another pace by
    now."""
    saving: RealSaving | None
    cost: CostInfo | None
    """None unless the user gave a price."""
    sentences: list[str]
    """All of this in words."""


class RegimeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the run in which steps take equally long."""

    first_step: int
    last_step: int
    step_ns: int
    """Median time per step, without the profiler."""


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
    regimes: list[RegimeInfo]
    """In order of time; one unless steps became slower or faster."""
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
