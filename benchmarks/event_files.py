"""Measures what event files cost: the tab beside many of them, and reading the scalars of a run.

    python benchmarks/event_files.py                  # 200 files of 50 MB
    python benchmarks/event_files.py --files 20 --megabytes 5

Prints Markdown. The files have real records. All but one are links to the first, so that they take
no space. The plugin runs in this process, without TensorBoard's own reader, which would read them
all at the same time; an audit hook counts how many of them the plugin opens.
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tensorboard.backend import application
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins import base_plugin
from werkzeug.test import Client

from processes import ROOT
from tb_perfadvisor.plugin.plugin import PerfAdvisorPlugin

_DEMO = ROOT / "demo_logs" / "pytorch_input_slow"
_API = "/data/plugin/perf_advisor/api/v1"
_TAGS = ("train/loss", "train/learning_rate", "train/grad_norm", "throughput/tokens_per_sec")
_CALLS = 200
_READ = """
import resource, sys, time
from pathlib import Path
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.event_files.run_scalars import read_run
from tb_perfadvisor.ingest.event_files.runs import event_runs
from tb_perfadvisor.ingest.event_files.run_scalars import ScalarCache
(run,) = event_runs(discover(sys.argv[1])).values()
began = time.perf_counter()
scalars = read_run(run, ScalarCache(Path(sys.argv[2])))
points = sum(len(series) for series in scalars.series.values())
print(time.perf_counter() - began, points, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def main() -> None:
    """Measure what the command line asks for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--megabytes", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="event_files_") as scratch:
        directory = Path(scratch)
        os.environ["PERFADVISOR_CACHE_DIR"] = str(directory / "cache")
        few, many = directory / "few", directory / "many"
        for logdir in (few, many):
            shutil.copytree(_DEMO, logdir / "run0")
        first = put_event_files(many, options.files, options.megabytes * 1_000_000)
        opened: list[str] = []
        sys.addaudithook(
            lambda event, arguments: (
                opened.append(str(arguments[0]))
                if event == "open" and "tfevents" in str(arguments[0])
                else None
            )
        )
        measure_tab(few)  # imports
        size = f"{options.files} event files of {options.megabytes} MB"
        print(f"| logdir | first list of captures | next ones | `is_active` |\n|{'---|' * 4}")
        for name, logdir in (("without event files", few), (f"with {size}", many)):
            print(f"| {name} | {measure_tab(logdir)} |")
        print(f"\nEvent files that the plugin opened: {len(opened)}.\n")
        measure_reading(first, directory / "scalars")


def write_events(path: Path, size_bytes: int) -> None:
    """Write an event file as PyTorch's writer does, with empty checksums."""
    written, step = 0, 0
    with path.open("wb") as stream:
        while written < size_bytes:
            for tag in _TAGS:
                value = summary_pb2.Summary.Value(tag=tag, simple_value=1 / (step + 1))
                event = event_pb2.Event(
                    wall_time=1.7e9 + step / 10, step=step, summary={"value": [value]}
                )
                data = event.SerializeToString()
                written += stream.write(struct.pack("<QI", len(data), 0) + data + bytes(4))
            step += 1


def put_event_files(logdir: Path, count: int, size_bytes: int) -> Path:
    """Write an event file, and link the others to it, each in a run of its own; the first one."""
    first = logdir / "run0" / "events.out.tfevents.1.host"
    for number in range(count):
        path = logdir / f"run{number}" / first.name
        path.parent.mkdir(exist_ok=True)
        if number == 0:
            write_events(first, size_bytes)
        else:
            os.link(first, path)
    return first


def measure_tab(logdir: Path) -> str:
    """Time until the first list, median of later ones, and of `is_active`, as cells."""
    context = base_plugin.TBContext(
        logdir=str(logdir), flags=argparse.Namespace(), plugin_name_to_instance={}
    )
    plugin = PerfAdvisorPlugin(context)
    began = time.perf_counter()
    client = Client(application.TensorBoardWSGI([plugin]))
    assert client.get(f"{_API}/captures").json["captures"]  # type: ignore[index]
    first_s = time.perf_counter() - began
    lists, actives = [], []
    for _ in range(_CALLS):
        began = time.perf_counter()
        client.get(f"{_API}/captures")
        listed = time.perf_counter()
        assert plugin.is_active()
        lists.append(listed - began)
        actives.append(time.perf_counter() - listed)
    plugin.close()
    return f"{1e3 * first_s:.0f} ms | {1e3 * median(lists):.1f} ms | {1e6 * median(actives):.0f} µs"


def measure_reading(file: Path, cache: Path) -> None:
    """Read a file in a process of its own: first, unchanged, and after it grew by 1 %."""
    size_bytes = file.stat().st_size
    print(f"| reading {size_bytes / 1e6:.0f} MB | time | points | peak memory |\n|{'---|' * 4}")
    for name in ("first", "unchanged", "grown by 1 %"):
        if name.startswith("grown"):
            grown = file.with_name("more")
            write_events(grown, size_bytes // 100)
            with file.open("ab") as stream:
                stream.write(grown.read_bytes())
            grown.unlink()
        done = subprocess.run(
            [sys.executable, "-c", _READ, str(file.parent), str(cache)],
            capture_output=True,
            text=True,
            check=True,
        )
        seconds, points, peak_kib = done.stdout.split()
        print(f"| {name} | {float(seconds):.2f} s | {points} | {int(peak_kib) >> 10} MiB |")


if __name__ == "__main__":
    main()
