"""What a recorded program measures of itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter_ns

FILE = "times.json"


@dataclass(frozen=True, slots=True)
class Times:
    """Mean times of a step in nanoseconds, by the program's own clock."""

    step_ns: float
    """Without the profiler: the mean of two stretches, one before and one after the recording."""
    recorded_step_ns: float
    """While the profiler recorded."""

    def write(self, directory: Path) -> None:
        """Write them beside the recording. A recording that has them is complete."""
        (directory / FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @staticmethod
    def read(directory: Path) -> Times:
        """The times of a recording."""
        return Times(**json.loads((directory / FILE).read_text(encoding="utf-8")))


def mean_ns(steps: int, run: Callable[[int], None], finish: Callable[[], object]) -> float:
    """Mean wall time of steps, including the wait for the last of them.

    Args:
        steps: How many to run.
        run: Runs the step of a number.
        finish: Waits until the device has done all of them.
    """
    start_ns = perf_counter_ns()
    for number in range(steps):
        run(number)
    finish()
    return (perf_counter_ns() - start_ns) / steps
