"""Measures how fast tb_perfadvisor is on this machine, against its peers and its targets.

    python benchmarks/speed.py                       # everything
    python benchmarks/speed.py kineto --runs 3       # one measure; also: xplane, scale, …
    python benchmarks/speed.py kineto --files A.pt.trace.json.gz B.pt.trace.json

Prints Markdown. Programs run alternately in fresh processes on the same files. Times are medians,
and ratios are medians of the ratios of pairs. The peers (see `peers.txt`) get an environment of
their own. Recorded inputs come from the folder in PERFADVISOR_CORPUS; without it, a demo trace is
repeated.
"""

from __future__ import annotations

import argparse
import functools
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from inputs import Inputs
from measures import MEASURES, Bench, Timing, Verdict
from processes import ROOT, FailedError, Result, cpu_s, wall_s
from scripts.pinned_tools import default_folder, python_with_tools

PEERS = ROOT / "benchmarks" / "peers.txt"
_MARKS = {True: "✓", False: "✗", None: "–"}


def main() -> None:
    """Measure what the command line asks for and print it."""
    given = _arguments()
    # Compile as an installer does, also for the peers: otherwise each process would compile a
    # checkout that is read-only or was just changed.
    subprocess.run([sys.executable, "-m", "compileall", "-q", ROOT / "tb_perfadvisor"], check=True)
    with _folder(given.work) as work:
        bench = Bench(
            inputs=Inputs(made=work / "inputs", given=tuple(given.files)),
            scratch=work,
            runs=given.runs,
            peers=functools.partial(python_with_tools, given.peers, PEERS),
        )
        verdicts = [
            verdict for name in given.measures or MEASURES for verdict in MEASURES[name](bench)
        ]
    text = "\n".join(_page(verdicts, bench.timings, given.runs))
    if given.output:
        given.output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "measures", nargs="*", metavar="MEASURE", help=f"of: {', '.join(MEASURES)}; default: all"
    )
    parser.add_argument("--runs", type=int, default=5, help="how often each program runs")
    parser.add_argument("--files", type=Path, nargs="+", default=[], help="Kineto traces to read")
    parser.add_argument("--output", type=Path, help="write the Markdown to this file")
    parser.add_argument(
        "--peers", type=Path, default=default_folder(PEERS), help="the peers' environment"
    )
    parser.add_argument("--work", type=Path, help="keep what is made in this folder")
    given = parser.parse_args()
    unknown = set(given.measures) - set(MEASURES)
    if unknown:
        parser.error(f"no such measure: {', '.join(sorted(unknown))}")
    return given


@contextmanager
def _folder(work: Path | None) -> Iterator[Path]:
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        yield work.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="perfadvisor-speed-") as made:
        yield Path(made)


def _page(verdicts: Sequence[Verdict], timings: Sequence[Timing], runs: int) -> Iterator[str]:
    yield f"Medians of {runs} interleaved runs, each in a fresh process; {_machine()}."
    yield ""
    yield "| what | target | measured | |"
    yield "|---|---|---|---|"
    for verdict in verdicts:
        mark = _MARKS[verdict.passed]
        yield f"| {verdict.what} | {verdict.target} | {verdict.measured} | {mark} |"
    yield ""
    yield "| input | MB | program | wall | CPU | peak memory |"
    yield "|---|---|---|---|---|---|"
    for timing in timings:
        size = "" if timing.megabytes is None else f"{timing.megabytes:.0f}"
        for program, result in timing.results.items():
            yield f"| {timing.input} | {size} | {program} | {_cells(result)} |"
    yield ""


def _cells(result: Result) -> str:
    if result.error:
        return f"failed: {result.error.replace('|', ' ')} | | "
    walls = [sample.wall_s for sample in result.samples]
    wall = f"{result.median(wall_s):.2f} s ({min(walls):.2f}–{max(walls):.2f})"
    cpu = f"{result.median(cpu_s):.2f} s"
    return f"{wall} | {cpu} | {result.peak_bytes / 1e6:.0f} MB"


def _machine() -> str:
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        model = f"{len(names)} cores of {names[0]}"
    except (OSError, IndexError):
        pass
    return f"Python {platform.python_version()}, {platform.system()}, {model}"


if __name__ == "__main__":
    try:
        main()
    except FailedError as error:
        sys.exit(str(error))
