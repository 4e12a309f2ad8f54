"""Measures how the analysis of one large Kineto trace scales with processes, by processor time.

    python benchmarks/slices.py big.pt.trace.json.gz --workers 1 4 8

With a core for each process, an analysis takes about as long as this process and the busiest of the
others work. That sum can be measured on any machine, however many cores it has and whatever else
it does. Prints Markdown. Needs Linux, which tells the time of each process.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from time import process_time

from tb_perfadvisor import analyze
from tb_perfadvisor.execution import open_execution


def main() -> None:
    """Measure what the command line asks for and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", type=Path, help="a Kineto trace of 80 MB or more")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 8])
    given = parser.parse_args()
    print("| processes | this one | busiest other | sum | all together |")
    print("|---|---|---|---|---|")
    for workers in given.workers:
        here_s, others_s = _processor_times(given.trace, workers)
        sum_s, all_s = here_s + max(others_s, default=0.0), here_s + sum(others_s)
        busiest = f"{max(others_s):.2f} s" if others_s else "–"
        print(f"| {workers} | {here_s:.2f} s | {busiest} | {sum_s:.2f} s | {all_s:.2f} s |")


def _processor_times(trace: Path, workers: int) -> tuple[float, list[float]]:
    """What this process took, and what each of the others did."""
    began_s = process_time()
    with open_execution([trace.stat().st_size], workers=workers) as execution:
        analyze(trace, execution=execution)
        here_s = process_time() - began_s
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return here_s, [_processor_s(process) for process in children]


def _processor_s(process: str) -> float:
    _, _, after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")
    user, system = after_name.split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
