"""Records a pair of profiles, with the true step times and a label for each.

A *pair* is two directories: the same training loop with and without one performance problem.
The true step time of both is measured without the profiler, because tracing slows the steps.
A recording script describes its pair and passes two functions to ``record_pair``: one measures,
the other records.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

from neutral_copies import NEUTRAL_HOST, copy_kineto, copy_xspace

LABEL_SCHEMA = 1
REPETITIONS = 5
WARM_UP_STEPS = 5
MEASURED_STEPS = 15
TAKES = 3
DEMO_LOGS = Path(__file__).resolve().parent.parent

Role = Literal["slow", "fixed"]
ROLES: tuple[Role, Role] = ("slow", "fixed")


@dataclass(frozen=True, slots=True)
class Variant:
    """One side of a pair: its directory, and what the recording script knows about it."""

    directory: str
    cause: str
    acceptable_first_findings: list[str]
    """Rules, one of which should rank first; empty for the fixed variant."""
    must_not_find: list[str]
    """Rules whose findings would be false positives."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The same training loop with and without one performance problem."""

    slow: Variant
    fixed: Variant
    framework: str
    packages: list[str]
    """Packages whose versions go into the label."""
    step_definition: str
    """What the true step time measures; the same for both variants."""
    notes: str
    script: str
    device: str = "cpu"

    def variant(self, role: Role) -> Variant:
        """The slow or the fixed variant."""
        return self.slow if role == "slow" else self.fixed


@dataclass(frozen=True, slots=True)
class StepTime:
    """Mean time of a training step without the profiler, in nanoseconds, measured repeatedly."""

    median: int
    repetitions: list[int]
    definition: str


@dataclass(frozen=True, slots=True)
class Take:
    """One recording: the profiler's output directory, and the mean step time while recording."""

    directory: Path
    profiled_step_ns: int


def output_directory(description: str | None) -> Path:
    """Parses a recording script's command line: ``--output``, by default ``demo_logs/``."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument(
        "--output", type=Path, default=DEMO_LOGS, help="directory to write the pair to"
    )
    output: Path = parser.parse_args().output
    return output.resolve()


def mean_step_ns(step: Callable[[], object]) -> int:
    """Runs a training step repeatedly; returns its mean wall time after the warm-up."""
    for _ in range(WARM_UP_STEPS):
        step()
    start_ns = time.perf_counter_ns()
    for _ in range(MEASURED_STEPS):
        step()
    return (time.perf_counter_ns() - start_ns) // MEASURED_STEPS


def record_pair(
    output: Path,
    pair: Pair,
    measure: Callable[[Role], int],
    record: Callable[[Role, Path], int],
) -> None:
    """Measures, records and labels both variants of a pair.

    Args:
        output: directory in which to replace the variants' directories.
        pair: what is recorded.
        measure: runs a variant without the profiler; returns its mean step time in nanoseconds.
        record: writes a profile of a variant below the given directory; returns the mean time of
            a recorded step in nanoseconds.
    """
    step_times = _measure_alternately(measure, pair.step_definition)
    for role in ROLES:
        step_time = step_times[role]
        with tempfile.TemporaryDirectory(prefix="demo_") as scratch:
            take = _quietest_take(partial(record, role), Path(scratch), step_time)
            directory = output / pair.variant(role).directory
            shutil.rmtree(directory, ignore_errors=True)
            _copy_profiles(take.directory, directory)
            label = _label(pair, role, step_time, take)
            text = json.dumps(label, indent=2, ensure_ascii=False)
            (directory / "label.json").write_text(text + "\n", encoding="utf-8")
        print(f"{directory.name}: profiled at {take.profiled_step_ns / 1e6:.1f} ms a step")


def _measure_alternately(measure: Callable[[Role], int], definition: str) -> dict[Role, StepTime]:
    """Measures slow and fixed in turn.

    Alternating spreads other load of the machine over both roles; the median ignores load that
    affected single repetitions.
    """
    repetitions: dict[Role, list[int]] = {role: [] for role in ROLES}
    for number in range(1, REPETITIONS + 1):
        for role in ROLES:
            step_ns = measure(role)
            repetitions[role].append(step_ns)
            print(f"{role}, repetition {number} of {REPETITIONS}: {step_ns / 1e6:.1f} ms a step")
    return {
        role: StepTime(int(statistics.median(times)), times, definition)
        for role, times in repetitions.items()
    }


def _quietest_take(record: Callable[[Path], int], scratch: Path, step_time: StepTime) -> Take:
    """Records three times; returns the take whose steps are closest to the true step time.

    Other load of the machine slows single steps of a short recording. Such a take shows a problem
    that the training loop does not have.
    """
    takes: list[Take] = []
    for number in range(TAKES):
        directory = scratch / f"take{number}"
        directory.mkdir()
        takes.append(Take(directory, record(directory)))
    return min(takes, key=lambda take: abs(take.profiled_step_ns - step_time.median))


def _copy_profiles(recorded: Path, directory: Path) -> None:
    """Copies Kineto traces and xplanes, without the machine's name and directories.

    Only the ``.xplane.pb`` of a TensorFlow or JAX session is copied: event files and Chrome traces
    repeat its content.
    """
    directory.mkdir(parents=True)
    for trace in recorded.glob("*.pt.trace.json.gz"):
        copy_kineto(trace, directory / trace.name)
    for profile in recorded.glob("**/plugins/profile/*/*.xplane.pb"):
        session = directory / "plugins" / "profile" / profile.parent.name
        session.mkdir(parents=True)
        copy_xspace(profile, session / f"{NEUTRAL_HOST}.xplane.pb")
    if not any(directory.iterdir()):
        raise FileNotFoundError(f"the profiler wrote nothing for {directory.name}")


def _label(pair: Pair, role: Role, step_time: StepTime, take: Take) -> dict[str, object]:
    """The facts about a recording, which come from its script and not from an analysis."""
    variant = pair.variant(role)
    versions = {name: metadata.version(name) for name in pair.packages}
    return {
        "schema": LABEL_SCHEMA,
        "id": variant.directory,
        "pair": pair.variant("fixed" if role == "slow" else "slow").directory,
        "role": role,
        "synthetic": False,
        "framework": pair.framework,
        "producer": {"python": platform.python_version()} | versions,
        "device": pair.device,
        "cause": variant.cause,
        "acceptable_first_findings": variant.acceptable_first_findings,
        "must_not_find": variant.must_not_find,
        "true_step_ns": asdict(step_time),
        "profiled_step_ns": take.profiled_step_ns,
        "recorded_with": f"demo_logs/record/{pair.script}",
        "notes": pair.notes,
    }
