"""How long the list of a log folder with thousands of runs takes: the scan, and each answer.

    python benchmarks/many_runs.py [--runs 5000]

Prints Markdown: seconds of processor time, as the machine may be busy. On an idle machine, waiting
adds little.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from werkzeug.test import EnvironBuilder
from werkzeug.wrappers import Request

from tb_perfadvisor.plugin.backend import Backend
from tb_perfadvisor.plugin.routes import listing

DEMO = Path(__file__).resolve().parents[1] / "demo_logs"
RUNS_PER_GROUP = 25


def make_runs(folder: Path, count: int) -> None:
    """Link two small recordings, of PyTorch and of XLA, into many runs of many experiments."""
    (trace,) = (DEMO / "pytorch_input_slow").glob("*.gz")
    (xplane,) = (DEMO / "synthetic_tpu_padded").rglob("*.xplane.pb")
    for number in range(count):
        group, run = divmod(number, RUNS_PER_GROUP)
        directory = folder / f"experiment{group:03d}" / f"run{run:02d}"
        if group % 2:
            directory = directory / "plugins" / "profile" / f"2026_01_{1 + run:02d}_00_00_00"
        directory.mkdir(parents=True)
        name = "host.xplane.pb" if group % 2 else f"w0.{1_760_000_000 + number}000.pt.trace.json.gz"
        os.link(xplane if group % 2 else trace, directory / name)


def timed(what: str, act: Callable[[], Any]) -> Any:
    """Do something, and print how long the processor worked on it."""
    began = time.process_time()
    result = act()
    print(f"| {what} | {time.process_time() - began:.2f} s |")
    return result


def main() -> None:
    """Time a first and a second list, and one row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5_000)
    options = parser.parse_args()
    print("| step | processor time |\n|---|---|")
    # Beside the demo profiles, as hard links do not leave a file system.
    with tempfile.TemporaryDirectory(dir=DEMO.parent) as folder:
        logs = Path(folder)
        make_runs(logs, options.runs)
        flags = SimpleNamespace(logdir_spec="")
        context: Any = SimpleNamespace(logdir=folder, flags=flags, plugin_name_to_instance={})
        backend = Backend(context)
        timed("scan, while TensorBoard starts", lambda: backend.catalog.refresh(600))
        entries = backend.catalog.snapshot.entries
        assert len(entries) == options.runs
        request = Request(EnvironBuilder("/api/v1/captures").get_environ())
        timed("first list", lambda: listing.captures(request, backend))
        timed("second list", lambda: listing.captures(request, backend))
        timed("one row", lambda: listing.describe(backend, [next(iter(entries.values()))]))
        timed("marks", lambda: listing.marks(request, backend))


if __name__ == "__main__":
    main()
