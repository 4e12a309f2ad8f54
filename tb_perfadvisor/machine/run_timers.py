"""What a recorder measures of a whole run without a trace, stored beside the run's captures.

A row is of some steps in succession. None is unknown, and never stands for zero. The files come
from elsewhere, so every field has a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Final

from msgspec import Meta, Struct

RUN_SUFFIX: Final = ".run.perfadvisor.json"
"""The timers of a process lie in the run's directory: `rank0.run.perfadvisor.json`, beside
`step_00000020/rank0.1795226000001.pt.trace.json.gz`."""
MOST_ROWS: Final = 512

_Name = Annotated[str, Meta(max_length=200)]
_Number = Annotated[int, Meta(ge=0, le=1 << 62)]
_Amount = Annotated[float, Meta(ge=0, le=1e18)]
_Rows = Meta(max_length=MOST_ROWS)
Numbers = Annotated[tuple[_Number, ...], _Rows]
Amounts = Annotated[tuple[_Amount, ...], _Rows]
Known = Annotated[tuple[_Amount | None, ...], _Rows]
"""Values of rows, some of which are unknown."""

HEAT: Final = ("thermal slowdown", "hardware slowdown", "power brake")
"""Reasons for low clocks that come from cooling or supply, whatever the program does."""
POWER_CAP: Final = "power cap"
"""Heavy work reaches the limit of power on many healthy devices."""


class DeviceTimers(Struct, frozen=True):
    """What NVML tells of the process's first GPU; means of each row."""

    name: _Name = ""
    max_clock_hz: _Amount | None = None
    """Of the multiprocessors."""
    power_limit_w: _Amount | None = None
    utilization: Known = ()
    """The share of time in which any kernel ran (0-1)."""
    memory_bytes: Known = ()
    clock_hz: Known = ()
    power_w: Known = ()
    temperature_c: Known = ()
    reduced: Annotated[Mapping[_Name, Known], Meta(max_length=16)] = {}
    """By reason: the share of looks at which the clocks were reduced because of it (0-1)."""


class RunTimers(Struct, frozen=True):
    """The steps of one process, without those that were recorded, evaluated or saved."""

    version: int = 1
    worker: _Name = ""
    """As in the names of its captures: `rank0`, or host and process."""
    rank: Annotated[int, Meta(ge=0, le=10**7)] = 0
    first_step: Numbers = ()
    start_ns: Numbers = ()
    """Unix time at which the row's first step began."""
    end_ns: Numbers = ()
    steps: Numbers = ()
    """How many of the row's steps were timed."""
    step_ns: Amounts = ()
    """Mean time of a step."""
    input_ns: Known = ()
    """The part of it in which the loop waited for a DataLoader."""
    ready_ns: Known = ()
    """From its beginning to its last call of `backward`."""
    device: DeviceTimers | None = None

    @property
    def is_sound(self) -> bool:
        """Whether there are rows, in order, and all have what every row has."""
        columns = (self.start_ns, self.end_ns, self.steps, self.step_ns)
        return (
            {len(column) for column in columns} == {len(self.first_step)} != {0}
            and all(before < after for before, after in pairwise(self.first_step))
            and min(self.steps) > 0
            and min(self.step_ns) > 0
        )
