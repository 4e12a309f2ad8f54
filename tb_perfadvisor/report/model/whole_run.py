"""What the scalars of the same run say about a profile."""

from __future__ import annotations

import msgspec


class RealSaving(msgspec.Struct, frozen=True, kw_only=True):
    """What all findings together save in a run that is not profiled."""

    low_ns: int
    """Per step, as are the next two."""
    expected_ns: int
    high_ns: int
    logged_ns: int
    """What is expected over the steps that the run has logged."""
    rest_ns: int | None
    """The same over the steps that are left; None if it is unknown how many."""


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
    last_step: int
    """That was logged so far."""
    elapsed_ns: int
    """From the first logged step to the last."""
    steps_left: int | None
    """None unless the user said how many there are."""
    saving: RealSaving | None
    cost: CostInfo | None
    """None unless the user gave a price."""
    sentences: list[str]
    """All of this in words."""
