"""Measures how close the step times of a report are to those of the program itself.

    python benchmarks/step_times.py --record DIR     # record the loops, ten times each (20 minutes)
    python benchmarks/step_times.py DIR              # compare the step times of reports with them

Recording needs TensorFlow and JAX, and continues where it was stopped. The same loops are recorded
in several ways, whose step times must agree: JAX waiting for each step, dispatching ahead with step
markers and without; Keras for one batch and for twenty. Prints Markdown.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from processes import ROOT
from recorded_steps.timing import FILE, Times
from tb_perfadvisor import analyze

_TIME_LIMIT_S = 300


@dataclass(frozen=True, slots=True)
class Recording:
    """One way to record one loop."""

    module: str
    loop: str
    form: str

    @property
    def name(self) -> str:
        """Its folder."""
        return f"{self.module}-{self.loop}-{self.form}"


RECORDINGS = (
    *(
        Recording("jax_dispatch", loop, form)
        for loop in ("readback", "scan", "healthy")
        for form in ("synchronous", "marked", "unmarked")
    ),
    *(
        Recording("keras_batches", model, batches)
        for model in ("convolutional", "dense")
        for batches in ("1", "20")
    ),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """The step time of a report beside the program's own."""

    step_ns: float
    times: Times

    @property
    def of_recorded(self) -> float:
        """Reported ÷ measured while recording."""
        return self.step_ns / self.times.recorded_step_ns

    @property
    def of_unrecorded(self) -> float:
        """Reported ÷ measured without the profiler."""
        return self.step_ns / self.times.step_ns

    @property
    def overhead(self) -> float:
        """What recording cost: measured while recording ÷ without the profiler."""
        return self.times.recorded_step_ns / self.times.step_ns


def main() -> None:
    """Record, or compare and print."""
    given = _arguments()
    recordings = [recording for recording in RECORDINGS if given.only in recording.name]
    if given.record is not None:
        sys.exit(record(given.record, recordings, given.repetitions))
    print("\n".join(table(given.directory, recordings)))


def record(directory: Path, recordings: Sequence[Recording], repetitions: int) -> int:
    """Record what is missing, each in a process of its own; returns how many failed."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "benchmarks")}
    failed = 0
    for number in range(repetitions):
        for recording in recordings:
            target = directory.resolve() / recording.name / str(number)
            if (target / FILE).exists():
                continue
            shutil.rmtree(target, ignore_errors=True)
            print(f"{recording.name}, repetition {number + 1} of {repetitions}", file=sys.stderr)
            module = f"recorded_steps.{recording.module}"
            command = [sys.executable, "-m", module, recording.loop, recording.form, str(target)]
            done = subprocess.run(command, env=environment, timeout=_TIME_LIMIT_S, check=False)
            failed += done.returncode != 0
    return failed


def table(directory: Path, recordings: Sequence[Recording]) -> Iterator[str]:
    """Medians over the repetitions, as a Markdown table."""
    yield "| recorded | n | reported | of the time recorded | of the time without | overhead |"
    yield "|---|---|---|---|---|---|"
    for recording in recordings:
        folders = sorted((directory / recording.name).glob("*"))
        readings = [_reading(folder) for folder in folders if (folder / FILE).exists()]
        known = [reading for reading in readings if reading is not None]
        if not known:
            yield f"| {recording.name} | 0 of {len(readings)} | – | – | – | – |"
            continue
        reported = median(reading.step_ns for reading in known)
        figures = " | ".join(
            _percent([getattr(reading, figure) for reading in known])
            for figure in ("of_recorded", "of_unrecorded", "overhead")
        )
        count = f"{len(known)} of {len(readings)}"
        yield f"| {recording.name} | {count} | {reported / 1e6:.1f} ms | {figures} |"


def _reading(folder: Path) -> Reading | None:
    """None if the report has no step time."""
    step_ns = analyze(folder).overview.step_time_ns
    return None if step_ns is None else Reading(step_ns, Times.read(folder))


def _percent(ratios: Sequence[float]) -> str:
    low, middle, high = min(ratios), median(ratios), max(ratios)
    return f"{100 * middle:.1f} % ({100 * low:.0f} to {100 * high:.0f})"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path, nargs="?", default=Path())
    parser.add_argument("--record", type=Path, metavar="DIR", help="record the loops into DIR")
    parser.add_argument("--repetitions", type=int, default=10, help="of each (default: 10)")
    parser.add_argument("--only", default="", help="recordings whose name contains this")
    return parser.parse_args()


if __name__ == "__main__":
    main()
