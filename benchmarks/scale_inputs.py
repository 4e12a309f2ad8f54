"""Measures how an analysis grows with each dimension of its input.

    python benchmarks/scale_inputs.py                         # all dimensions, as far as they go
    python benchmarks/scale_inputs.py kineto-streams xplane-planes --most 10000
    python benchmarks/scale_inputs.py --list

Writes a profile of the largest size and one of a quarter of it, and analyzes each in a fresh
process, with all views. Prints Markdown. The exponent says how the processor time grows between the
two, without the time that an analysis of nothing takes: doubling the input multiplies the time by 2
to the power of the exponent. 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from processes import ROOT, environment
from scaled_inputs import DIMENSIONS

MOST_EXPONENT = 1.2
_PROGRAMS = ROOT / "benchmarks" / "programs"
_BASE_SIZE = 4
_TIME_LIMIT_S = 600
"""Of the processor, so that other work of the machine fails nothing."""
# Below this, the exponent is that of noise.
_SHORTEST_S = 0.5


@dataclass(frozen=True, slots=True)
class Measured:
    """One analysis."""

    count: int
    work_s: float | None
    """Processor time; None if it took too long or failed."""
    peak_bytes: int = 0
    problem: str = ""


def main() -> None:
    """Measure what the command line asks for and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dimensions", nargs="*", default=[], help="by default all")
    parser.add_argument("--most", type=int, default=10**6, help="the most items of a dimension")
    parser.add_argument("--list", action="store_true", help="print the dimensions and end")
    given = parser.parse_args()
    if unknown := set(given.dimensions) - DIMENSIONS.keys():
        parser.error(f"no such dimension: {', '.join(sorted(unknown))}; see --list")
    if given.list:
        for name, each in DIMENSIONS.items():
            print(f"{name:24} up to {each.largest:,}: {each.write.__doc__}")
        return
    print("| dimension | items | processor time | peak memory | exponent |")
    print("|---|---|---|---|---|")
    for name in given.dimensions or DIMENSIONS:
        largest = min(DIMENSIONS[name].largest, given.most)
        least_s = _measured(name, _BASE_SIZE).work_s or 0.0
        results = list(_until_failure(name, (largest // 4, largest)))
        print(_row(name, results, least_s), flush=True)


def _until_failure(name: str, sizes: Sequence[int]) -> Iterator[Measured]:
    for count in sizes:
        result = _measured(name, count)
        yield result
        if result.work_s is None:
            return


def _measured(name: str, count: int) -> Measured:
    with tempfile.TemporaryDirectory(prefix="perfadvisor-inputs-") as made:
        folder = Path(made)
        profile = folder / "logdir"
        profile.mkdir()
        dimension = DIMENSIONS[name]
        dimension.write(count, profile)
        done = subprocess.run(
            [sys.executable, str(_PROGRAMS / dimension.program), str(profile)],
            capture_output=True,
            text=True,
            env=environment(folder),
            preexec_fn=_limit_time,
            check=False,
        )
    if done.returncode == -signal.SIGXCPU:
        return Measured(count, None, problem=f"longer than {_TIME_LIMIT_S} s")
    if done.returncode:
        return Measured(count, None, problem=(done.stderr.splitlines() or ["failed"])[-1])
    said = json.loads(done.stdout)
    problem = f"failed rules: {', '.join(said['failed'])}" if said["failed"] else ""
    return Measured(count, said["work_s"], said["peak_bytes"], problem)


def _limit_time() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_TIME_LIMIT_S, _TIME_LIMIT_S + 1))


def _row(name: str, results: Sequence[Measured], least_s: float) -> str:
    last = results[-1]
    if last.work_s is None:
        return f"| {name} | {last.count:,} | – | – | ✗ {last.problem} |"
    value = exponent([(each.count, (each.work_s or 0.0) - least_s) for each in results])
    shown = "–" if value is None else f"{value:.2f}"
    is_met = not last.problem and (value is None or value <= MOST_EXPONENT)
    return (
        f"| {name} | {last.count:,} | {last.work_s:.1f} s | {last.peak_bytes / 1e6:,.0f} MB |"
        f" {'✓' if is_met else '✗'} {shown} {last.problem}".rstrip()
        + " |"
    )


def exponent(points: Sequence[tuple[int, float]]) -> float | None:
    """The exponent of growth between the first and the last of (items, seconds).

    None if the last takes too little time to tell.
    """
    (count, first_s), (most, last_s) = points[0], points[-1]
    if last_s < _SHORTEST_S or most <= count:
        return None
    return math.log(last_s / max(first_s, _SHORTEST_S / 4)) / math.log(most / count)


if __name__ == "__main__":
    main()
