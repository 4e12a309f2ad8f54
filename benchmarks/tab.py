"""Measures how quickly the tab shows a report and responds to interaction.

    python benchmarks/tab.py                 # the demo's reports, and a run of 64 ranks
    python benchmarks/tab.py --ranks 512 --visits 3
    python benchmarks/tab.py --paint-only --event-files 200    # of 50 MB, in the same logdir

Prints Markdown. A real Chromium (through Playwright) visits a real TensorBoard. Reports are cached,
as after the first visit. Each visit has a new browser context with empty caches. Times come from
the browser: paint from the Paint Timing API, since the start of the tab's frame; responses from
the Event Timing API, from input to the next paint; and blocking work from the Long Tasks API.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import urlopen

from event_files import put_event_files
from inputs import Inputs
from processes import ROOT
from served import serving

MAX_PAINT_MS = 300.0
# Nielsen, "Usability Engineering" (1993): up to 0.1 s, a system seems to react at once.
MAX_ANSWER_MS = 100.0
_VIEWS = (
    *("Report", "Steps", "Ranks", "Input", "Kernels", "Operators", "Memory"),
    *("Compare", "Rules", "Files"),
)
_RECORDED = "hta/nccl_parser_config/b4b6dcef/nccl_data.json.gz"
_DEMO = "pytorch_ddp_straggler/worker0.*.pt.trace.json.gz"
_EVENT_FILE_BYTES = 50_000_000
_API = "data/plugin/perf_advisor/api/v1"
# Runs in every frame before its scripts: records when the report appears, and blocking work.
_WATCH = """
window.seen = { events: [], tasks: [] };
new PerformanceObserver((list) => seen.events.push(...list.getEntries().map((e) => e.duration)))
  .observe({ type: "event", durationThreshold: 16, buffered: true });
new PerformanceObserver((list) => seen.tasks.push(...list.getEntries().map((e) => e.duration)))
  .observe({ type: "longtask", buffered: true });
const look = () => {
  if (document.querySelector("h1")?.innerText) seen.shown = performance.now();
  else requestAnimationFrame(look);
};
look();
"""


@dataclass(slots=True)
class Visits:
    """Measurements of one run."""

    name: str
    ranks: int
    paint_ms: list[float] = field(default_factory=list)
    """Of the first content in the tab's frame."""
    report_ms: list[float] = field(default_factory=list)
    """Of the report's headline, from the beginning of the frame."""
    answer_ms: list[float] = field(default_factory=list)
    """The slowest answer of each visit."""
    busy_ms: list[float] = field(default_factory=list)
    """The longest piece of work of each visit that no answer can interrupt."""
    report_bytes: int = 0


def main() -> None:
    """Measure what the command line asks for and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--event-files", type=int, default=0, metavar="N")
    parser.add_argument("--paint-only", action="store_true", help="don't use what is shown")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="perfadvisor-tab-") as made:
        logs = Path(made) / "logs"
        for run in ("pytorch_input_slow", "tensorflow_input_slow"):
            shutil.copytree(ROOT / "demo_logs" / run, logs / run)
        many = Inputs(made=Path(made), given=(_source(),)).ranks(given.ranks, 0)
        many.rename(logs / f"{given.ranks} ranks")
        put_event_files(logs, given.event_files, _EVENT_FILE_BYTES)
        with serving(logs, Path(made) / "cache", _has_captures) as address:
            rows = list(_measure(address, given.visits, is_used=not given.paint_only))
    print("\n".join(_page(rows, is_used=not given.paint_only)))


def _source() -> Path:
    corpus = os.environ.get("PERFADVISOR_CORPUS")
    recorded = Path(corpus) / _RECORDED if corpus else None
    if recorded is not None and recorded.exists():
        return recorded
    (found,) = (ROOT / "demo_logs").glob(_DEMO)
    return found


def _has_captures(address: str) -> bool:
    return bool(_read(address, "captures")[1]["captures"])


def _read(address: str, path: str) -> tuple[int, Any]:
    with urlopen(f"{address}/{_API}/{path}", timeout=60) as answer:
        return answer.status, json.load(answer)


def _measure(address: str, visits: int, *, is_used: bool) -> Iterator[Visits]:
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    captures = _read(address, "captures")[1]["captures"]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for capture in captures:
            while (answer := _read(address, f"captures/{capture['id']}/report"))[0] != 200:
                time.sleep(0.2)
            report = answer[1]
            row = Visits(capture["run"], len(report["workers"]))
            row.report_bytes = len(json.dumps(report, separators=(",", ":")))
            for _ in range(visits):
                url = f"{address}/#perf_advisor&p.perf_advisor.capture={capture['id']}"
                _visit(browser, url, report, row, is_used=is_used)
            yield row
        browser.close()


def _visit(browser: Any, url: str, report: dict[str, Any], row: Visits, *, is_used: bool) -> None:
    """Open the report, and use all of its controls if that is wanted."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    context.add_init_script(_WATCH)
    page = context.new_page()
    page.goto(url)
    tab = page.frame_locator("iframe[src*='perf_advisor']")
    body = tab.locator("body")
    tab.get_by_role("heading", level=1, name=report["headline"]).wait_for()
    row.report_ms.append(body.evaluate("seen.shown"))
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    row.paint_ms.append(body.evaluate(paint))
    if is_used:
        _use(page, tab, row)
    context.close()


def _use(page: Any, tab: Any, row: Visits) -> None:
    """Use all controls of a report that is shown."""
    body = tab.locator("body")
    body.evaluate("() => { seen.tasks.length = seen.events.length = 0; }")

    rows = tab.locator(".finding-row")
    for place in range(rows.count()):
        rows.nth(place).click()
        tab.locator(".finding.is-open").nth(place).wait_for()
    for button in tab.get_by_role("button", name="Zoom out").all()[:3]:
        button.click()
    views = tab.get_by_role("navigation", name="Pages")
    for view in _VIEWS:
        views.get_by_role("link", name=view, exact=True).click()
        tab.get_by_role("heading", level=1).first.wait_for()
        page.wait_for_timeout(400)
        for figure in tab.locator("main svg").all()[:4]:
            _sweep(page, figure)
        for head in tab.locator("main th button").all()[:6]:
            head.click()
        for search in tab.get_by_role("searchbox").all()[:1]:
            search.press_sequentially("a 1")
        for choice in tab.get_by_role("button", pressed=False).all()[:2]:
            choice.click()
    page.wait_for_timeout(300)
    seen = body.evaluate("seen")
    row.answer_ms.append(max(seen["events"], default=0.0))
    row.busy_ms.append(max(seen["tasks"], default=0.0))


def _sweep(page: Any, figure: Any) -> None:
    """Move the pointer over a chart, which shows details under it."""
    box = figure.bounding_box()
    if box is None or box["width"] < 100:
        return
    figure.scroll_into_view_if_needed()
    box = figure.bounding_box()
    for part in range(1, 10):
        page.mouse.move(box["x"] + box["width"] * part / 10, box["y"] + box["height"] / 2)


def _page(rows: Sequence[Visits], *, is_used: bool) -> Iterator[str]:
    bundle = (ROOT / "tb_perfadvisor" / "static" / "index.js").read_bytes()
    yield (
        f"The tab is one file of {len(bundle) / 1e3:.0f} kB,"
        f" {len(gzip.compress(bundle, 3)) / 1e3:.0f} kB over the wire."
    )
    yield ""
    heads, lines = ["run", "ranks", "report", "first paint", "report shown"], []
    for row in rows:
        cells = [row.name, f"{row.ranks}", f"{row.report_bytes / 1e3:.0f} kB"]
        measured = [row.paint_ms, row.report_ms]
        if is_used:
            measured += [row.answer_ms, row.busy_ms]
        lines.append([*cells, *(f"{median(times):.0f} ms" for times in measured)])
    if is_used:
        heads += ["slowest answer", "longest uninterrupted work"]
    for cells in (heads, ["---"] * len(heads), *lines):
        yield f"| {' | '.join(cells)} |"
    yield ""
    paint = max(median(row.report_ms) for row in rows)
    yield f"{_mark(paint <= MAX_PAINT_MS)} a cached report is shown within {MAX_PAINT_MS:.0f} ms"
    if is_used:
        answer = max(median(row.answer_ms) for row in rows)
        yield f"{_mark(answer <= MAX_ANSWER_MS)} every answer within {MAX_ANSWER_MS:.0f} ms"


def _mark(is_met: bool) -> str:
    return "✓" if is_met else "✗"


if __name__ == "__main__":
    main()
