"""What scalars do not tell about a run, and the user may."""

from __future__ import annotations

from msgspec import Struct


class RunOptions(Struct, frozen=True):
    """Facts about a run that the user gave."""

    price_per_device_hour: float | None = None
    """In any currency."""
    total_steps: int | None = None
    """The step at which the run will end."""
