"""How long the list of a log folder with thousands of runs takes: the scan, and each answer.

    python benchmarks/many_runs.py [--runs 5000] [--visits 3]

Prints Markdown: first seconds of processor time, as the machine may be busy, then what a user waits
for: a real Chromium (through Playwright) visits a real TensorBoard, with a new browser each time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

from werkzeug.test import EnvironBuilder
from werkzeug.wrappers import Request

from served import serving
from tb_perfadvisor.plugin.backend import Backend
from tb_perfadvisor.plugin.routes import listing

DEMO = Path(__file__).resolve().parents[1] / "demo_logs"
RUNS_PER_GROUP = 25
_API = "data/plugin/perf_advisor/api/v1"
# Runs in every frame before its scripts: when the rows of the newest runs are shown.
_WATCH = """
const look = () => {
  if (document.querySelector(".runs tbody tr:not(.gap)")) window.shown = performance.now();
  else requestAnimationFrame(look);
};
look();
"""


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


def visits(logs: Path, cache: Path, runs: int, count: int) -> Iterator[tuple[str, float]]:
    """What a user waits for, in seconds: the server's first whole list, and rows in a browser."""
    from playwright.sync_api import sync_playwright

    def listed(address: str) -> dict[str, Any]:
        with urlopen(f"{address}/{_API}/captures", timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def is_up(address: str) -> bool:
        with urlopen(address, timeout=60) as answer:
            return bool(answer.status == 200)

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    with serving(logs, cache, is_up) as address, sync_playwright() as driver:
        began = time.perf_counter()
        while len(listed(address)["captures"]) < runs:
            time.sleep(0.02)
        yield "first whole list, after TensorBoard answers", time.perf_counter() - began
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        shown = []
        for _ in range(count):
            context = browser.new_context(viewport={"width": 1440, "height": 1000})
            context.add_init_script(_WATCH)
            page = context.new_page()
            page.goto(f"{address}/#perf_advisor")
            tab = page.frame_locator("iframe[src*='perf_advisor']")
            tab.locator(".runs tbody tr:not(.gap)").first.wait_for(timeout=60_000)
            shown.append(tab.locator("body").evaluate("shown") / 1e3)
            context.close()
        browser.close()
    yield "rows in the browser, after the tab begins to load", median(shown)


def main() -> None:
    """Time a first and a second list, and one row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5_000)
    parser.add_argument("--visits", type=int, default=3)
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
        print("\n| what a user waits for | time |\n|---|---|")
        with tempfile.TemporaryDirectory() as cache:
            for what, seconds in visits(logs, Path(cache), options.runs, options.visits):
                print(f"| {what} | {seconds:.2f} s |")


if __name__ == "__main__":
    main()
