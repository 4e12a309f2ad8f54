"""Measures the timeline of a large trace: its first frame, and frames while something is dragged.

    python benchmarks/timeline.py                    # a million events
    python benchmarks/timeline.py --events 200000 --visits 5

Prints Markdown. A real Chromium (through Playwright) visits a real TensorBoard; the report is
cached, and the browser is new. The first frame counts from the moment at which the report's
headline is shown. What the main thread does in each frame comes from Chromium's own trace: the
processor time of all its tasks from one frame's beginning to the next one's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import urlopen

from big_kineto import repeat
from processes import ROOT
from served import serving

MAX_FIRST_FRAME_MS = 1_000.0
MAX_MEDIAN_MS = 16.0
MAX_P95_MS = 50.0
_RECORDED = "tracelens/h100/google_owlv2-large-patch14-ensemble/rank0.pt.trace.json.gz"
_DEMO = "pytorch_input_slow/worker0.*.pt.trace.json.gz"
_API = "data/plugin/perf_advisor/api/v1"
_MOVES = 120
# Where a drag moves the timeline, and where it selects a range.
_ROWS_PX, _HEAD_PX = 150, 30
_WAIT_MS = 120_000
# Runs in every frame before its scripts: when the report is shown, and when its timeline is drawn.
_WATCH = """
window.seen = {};
const look = () => {
  if (document.querySelector("h1")?.innerText) seen.report ??= performance.now();
  if (document.querySelector("canvas[data-drawn]")) seen.drawn ??= performance.now();
  if (!seen.drawn) requestAnimationFrame(look);
};
// Only in the tab: elsewhere there is nothing to find, and looking would count as frames.
if (location.href.includes("plugin_entry")) look();
"""
_CATEGORIES = ["toplevel", "devtools.timeline", "disabled-by-default-devtools.timeline"]


def main() -> None:
    """Measure what the command line asks for and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--visits", type=int, default=3)
    parser.add_argument("--cache", type=Path, help="keep the profile and its report here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="perfadvisor-timeline-") as made:
        folder = given.cache or Path(made)
        logs = folder / "logs"
        if not logs.exists():
            _write(logs / "large" / "worker0.1.pt.trace.json.gz", given.events)
        with serving(logs, folder / "cache", _has_captures) as address:
            (capture,) = _read(address, "captures")[1]["captures"]
            while (answer := _read(address, f"captures/{capture['id']}/report"))[0] != 200:
                time.sleep(0.2)
            events = sum(worker["events"] for worker in answer[1]["workers"])
            print("\n".join(_measure(address, capture["id"], events, given.visits)))


def _write(target: Path, events: int) -> None:
    """A profile with at least so many events, which repeats a recorded one."""
    from tb_perfadvisor import load

    corpus = os.environ.get("PERFADVISOR_CORPUS")
    source = Path(corpus) / _RECORDED if corpus else None
    if source is None or not source.exists():
        (source,) = (ROOT / "demo_logs").glob(_DEMO)
    with tempfile.TemporaryDirectory() as single:
        copy = Path(single) / "run" / "worker0.1.pt.trace.json.gz"
        copy.parent.mkdir()
        shutil.copy(source, copy)
        recorded = len(load(copy.parent)[0].traces[0].events)
    size_bytes = _size_of(source) * -(-events // recorded)
    repeat(source, target, size_bytes=size_bytes)


def _size_of(source: Path) -> int:
    import gzip

    with gzip.open(source) as file:
        return file.seek(0, 2)


def _has_captures(address: str) -> bool:
    return bool(_read(address, "captures")[1]["captures"])


def _read(address: str, path: str) -> tuple[int, Any]:
    with urlopen(f"{address}/{_API}/{path}", timeout=60) as answer:
        return answer.status, json.load(answer)


def _measure(address: str, capture: str, events: int, visits: int) -> Iterator[str]:
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    first: list[float] = []
    frames: dict[str, list[float]] = {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for visit in range(visits):
            context = browser.new_context(viewport={"width": 1440, "height": 1000})
            context.add_init_script(_WATCH)
            page = context.new_page()
            page.set_default_timeout(_WAIT_MS)
            page.goto(f"{address}/#perf_advisor&p.perf_advisor.capture={capture}")
            tab = page.frame_locator("iframe[src*='perf_advisor']")
            tab.locator("canvas[data-drawn]").first.wait_for()
            seen = tab.locator("body").evaluate("seen")
            first.append(seen["drawn"] - seen["report"])
            if visit == 0:
                page.wait_for_timeout(1_500)
                frames = {
                    name: _frames(browser, page, tab, keys, top)
                    for name, keys, top in (
                        ("a step, moved", (), _ROWS_PX),
                        ("several steps, moved", ("s",) * 3, _ROWS_PX),
                        ("zoomed in, moved", ("w",) * 12, _ROWS_PX),
                        ("a range dragged in a step", (), _HEAD_PX),
                        ("a range dragged in several steps", ("s",) * 3, _HEAD_PX),
                    )
                }
            context.close()
        browser.close()
    yield f"{events:,} events."
    yield ""
    yield "| what | median | 95th percentile | frames |"
    yield "| --- | --- | --- | --- |"
    yield f"| first frame after the report | {median(first):.0f} ms | {max(first):.0f} ms | |"
    for name, busy in frames.items():
        yield f"| {name} | {median(busy):.1f} ms | {_p95(busy):.1f} ms | {len(busy)} |"
    yield ""
    busy = [ms for times in frames.values() for ms in times]
    yield f"{_mark(median(first) <= MAX_FIRST_FRAME_MS)} first frame in {MAX_FIRST_FRAME_MS:.0f} ms"
    yield f"{_mark(median(busy) <= MAX_MEDIAN_MS)} median of a frame in {MAX_MEDIAN_MS:.0f} ms"
    yield f"{_mark(_p95(busy) <= MAX_P95_MS)} 95th percentile in {MAX_P95_MS:.0f} ms"


def _frames(browser: Any, page: Any, tab: Any, keys: Sequence[str], top: int) -> list[float]:
    """The main thread's time in each frame while something is dragged to and fro at a height."""
    plane = tab.get_by_role("application").first
    plane.scroll_into_view_if_needed()
    plane.focus()
    page.keyboard.press("Home")
    for key in keys:
        page.keyboard.press(key)
    page.wait_for_timeout(1_500)
    box = plane.bounding_box()
    x, y = box["x"] + box["width"] - 100, box["y"] + top
    page.mouse.move(x, y)
    browser.start_tracing(page=page, categories=_CATEGORIES)
    page.mouse.down()
    for move in range(_MOVES):
        # Far enough that more events are fetched on the way.
        page.mouse.move(x - 800 * (1 - abs(1 - move / (_MOVES / 2))), y)
        page.wait_for_timeout(16)
    page.mouse.up()
    trace = json.loads(browser.stop_tracing())
    busy = list(_busy_ms(trace["traceEvents"]))
    if len(busy) < _MOVES // 4:
        sys.exit("the timeline did not move")
    return busy


def _busy_ms(events: Sequence[dict[str, Any]]) -> Iterator[float]:
    """Time of the main thread's tasks from one drawn frame to the next, where one was drawn."""
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    mains = {thread for thread, name in names.items() if name == "CrRendererMain"}
    drawn: dict[tuple[int, int], list[float]] = {}
    for event in events:
        thread = (event["pid"], event["tid"])
        if thread in mains and event["name"] == "FireAnimationFrame":
            drawn.setdefault(thread, []).append(event["ts"])
    thread = max(drawn, key=lambda known: len(drawn[known]))
    starts = sorted(set(drawn[thread]))
    tasks = [
        # On a busy machine, the time since its beginning is not only the thread's own.
        (event["ts"] + event["dur"], event.get("tdur", event["dur"]))
        for event in events
        if (event["pid"], event["tid"]) == thread
        and event["name"] in ("RunTask", "ThreadControllerImpl::RunTask")
        and "dur" in event
    ]
    for begin, end in pairwise(starts):
        # The task that draws a frame began just before it.
        yield sum(us for ended, us in tasks if begin <= ended < end) / 1e3


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[min(int(0.95 * len(values)), len(values) - 1)]


def _mark(is_met: bool) -> str:
    return "✓" if is_met else "✗"


if __name__ == "__main__":
    main()
