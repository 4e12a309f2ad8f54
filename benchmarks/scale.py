"""Measures how analysis time grows with the number of ranks.

    python benchmarks/scale.py                    # 8, 64, 512 and 4,096 ranks
    python benchmarks/scale.py 8 64 --runs 1

Prints Markdown. Small runs are files: a recorded trace written for each rank, and analyzed by the
command in a fresh process. Large runs are summaries, as the workers of a cluster send them, made
from the same trace and compared in a fresh process. Every rank has its own clock and arrives at
collectives with jitter; one in a hundred is always late. The benchmark checks that exactly those
are named.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from inputs import Inputs
from processes import ROOT, Command, FailedError, Program, in_turns, wall_s, work_s
from uneven_ranks import late_ranks

MOST_FILES = 64
DEFAULT = (8, 64, 512, 4_096)
MAX_REPORT_BYTES = 2_000_000
MAX_REDUCE_S = 10.0
_PROGRAM = ROOT / "benchmarks" / "programs" / "reduce_ranks.py"
# One of two A100s: 10 MB, with 5 all-reduces per step and their sizes.
_RECORDED = "hta/nccl_parser_config/b4b6dcef/nccl_data.json.gz"
_DEMO = "synthetic_gpu_allreduce_8rank/rank0.*.pt.trace.json.gz"


@dataclass(frozen=True, slots=True)
class Row:
    """Measurements for some number of ranks."""

    ranks: int
    is_files: bool
    wall_s: float
    work_s: float
    """Of files all of it; of summaries what comparing them and writing the report took."""
    peak_bytes: float
    report_bytes: int
    late_are_right: bool


def main() -> None:
    """Measure what the command line asks for and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ranks", nargs="*", type=int, default=list(DEFAULT))
    parser.add_argument("--runs", type=int, default=3, help="how often each runs")
    parser.add_argument("--workers", type=int, default=2, help="processes that read files")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="perfadvisor-scale-") as made:
        rows = [_measure(count, Path(made), given.runs, given.workers) for count in given.ranks]
    print("\n".join(_page(rows)))


def _measure(count: int, made: Path, runs: int, workers: int) -> Row:
    source, output = _source(), made / f"{count}.json"
    is_files = count <= MOST_FILES
    if is_files:
        folder = Inputs(made=made, given=(source,)).uneven_ranks(count)

    def commands(_: Path) -> Sequence[Command]:
        if not is_files:
            return [[sys.executable, str(_PROGRAM), str(source), str(count), str(output)]]
        options = ["--format", "json", "--views", "--output", str(output), "--no-cache"]
        command = [sys.executable, "-m", "tb_perfadvisor", "analyze", str(folder), *options]
        return [[*command, "--workers", str(workers)]]

    name = f"{count} ranks"
    result = in_turns([Program(name, commands)], runs, made)[name]
    if result.error:
        raise FailedError(result.error)
    content = output.read_bytes()
    document = json.loads(content)
    report = document["reports"][0] if is_files else document
    assert len(report["workers"]) == count
    late = sorted((report["views"].get("ranks") or {}).get("late", []))
    ranks = [report["workers"][worker]["rank"] for worker in late]
    return Row(
        ranks=count,
        is_files=is_files,
        wall_s=result.median(wall_s),
        work_s=result.median(work_s),
        peak_bytes=result.peak_bytes,
        report_bytes=len(content),
        late_are_right=ranks == late_ranks(count),
    )


def _source() -> Path:
    corpus = os.environ.get("PERFADVISOR_CORPUS")
    recorded = Path(corpus) / _RECORDED if corpus else None
    if recorded is not None and recorded.exists():
        return recorded
    (found,) = (ROOT / "demo_logs").glob(_DEMO)
    return found


def _page(rows: Sequence[Row]) -> Iterator[str]:
    yield "| ranks | as | wall | comparing | per rank | peak memory | report | late ranks named |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        compared = "–" if row.is_files else f"{row.work_s:.2f} s"
        named = "all, and no other" if row.late_are_right else "wrongly"
        yield (
            f"| {row.ranks:,} | {'files' if row.is_files else 'summaries'} | {row.wall_s:.1f} s |"
            f" {compared} | {row.work_s / row.ranks * 1e3:.2f} ms |"
            f" {row.peak_bytes / 1e6:.0f} MB | {row.report_bytes / 1e3:.0f} kB | {named} |"
        )
    largest = rows[-1]
    if not largest.is_files:
        is_met = largest.work_s <= MAX_REDUCE_S and largest.report_bytes <= MAX_REPORT_BYTES
        yield ""
        yield (
            f"{'✓' if is_met else '✗'} {largest.ranks:,} ranks: compared within"
            f" {MAX_REDUCE_S:.0f} s, report below 2 MB"
        )


if __name__ == "__main__":
    try:
        main()
    except FailedError as error:
        sys.exit(str(error))
