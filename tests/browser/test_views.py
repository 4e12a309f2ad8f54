"""The pages of the tab: numbers from the routes, tables, links, accessibility."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.browser import settle

Reader = Callable[[str], dict[str, Any]]
Opener = Callable[..., Any]
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))


def _duration(ns: float) -> str:
    """Format a duration as the tab does: three digits and a unit."""
    for size, unit in _UNITS:
        if abs(ns) >= size * 0.9995:
            value = ns / size
            digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
            return f"{value:.{digits}f} {unit}"
    return f"{ns:.0f} ns"


def _bytes(size: float) -> str:
    """Format a size as the tab does: three digits and a binary unit."""
    units = iter(("B", "KiB", "MiB", "GiB"))
    unit = next(units)
    while size >= 1024:
        size, unit = size / 1024, next(units)
    return f"{size:.{0 if size >= 99.95 else 1 if size >= 9.995 else 2}f} {unit}"


def _text(locator: Any) -> str:
    """The text of an element, with plain spaces in place of no-break spaces."""
    text: str = locator.inner_text().replace("\xa0", " ")
    return text


def test_ranks_page_names_the_straggler(
    opened: Opener, ids: Callable[[str], str], read: Reader
) -> None:
    capture = ids("pytorch_ddp_straggler")
    view = read(f"captures/{capture}/views/ranks")
    assert view["late"] == [1]  # by the demo's label, rank 1 is the slow one
    frame = opened("ranks", capture)
    late = _duration(view["late_ns"][1])
    heading = f"Other ranks wait {late} per step for rank 1"
    frame.get_by_role("heading", level=1, name=heading).wait_for()
    row = frame.get_by_role("group", name="All ranks").get_by_role("row").filter(has_text="rank 1")
    assert late in _text(row)
    assert _duration(view["step_ns"][1]) in _text(row)
    cells = frame.get_by_role("img", name=re.compile("^Time of 2 ranks")).locator("rect")
    # Each rank has two rectangles per cause: the background and the color.
    assert cells.count() >= 2 * len(view["causes"])


def test_input_page_shows_the_stall_and_the_bottleneck(
    opened: Opener, ids: Callable[[str], str], read: Reader
) -> None:
    capture = ids("tensorflow_input_slow")
    view = read(f"captures/{capture}/views/input")
    worst = view["iterators"][view["bottleneck"]]
    assert worst["kind"] == "MapAndBatch"
    frame = opened("input", capture)
    stall = _duration(view["stall_ns"])
    heading = f"The step waits {stall} for input, mostly in MapAndBatch"
    frame.get_by_role("heading", level=1, name=heading).wait_for()
    row = _text(frame.get_by_role("row").filter(has_text="bottleneck"))
    assert _duration(worst["stall_ns"]) in row
    assert _duration(worst["function_ns"]) in row
    assert "batch 24" in row


def test_kernels_sort_by_time(opened: Opener, ids: Callable[[str], str], read: Reader) -> None:
    capture = ids("synthetic_gpu_allreduce_8rank")
    points = read(f"captures/{capture}/views/kernels")["points"]
    steps = read(f"captures/{capture}/report")["overview"]["steps"]
    frame = opened("device", capture)
    table = frame.get_by_role("group", name="All kernels")
    first = table.get_by_role("row").nth(1)
    assert points[0]["name"] in _text(first)
    assert _duration(points[0]["total_ns"] / steps) in _text(first)
    # The second click sorts by ascending time, so that the smallest kernel is first.
    sort = table.get_by_role("button", name="Per step")
    sort.click()
    sort.click()
    assert table.get_by_role("columnheader", name="Per step").get_attribute("aria-sort") == (
        "ascending"
    )
    smallest = min(points, key=lambda point: point["total_ns"])
    assert _duration(smallest["total_ns"] / steps) in _text(table.get_by_role("row").nth(1))


def test_report_and_steps_pages_show_the_numbers_of_the_routes(
    opened: Opener, ids: Callable[[str], str], read: Reader
) -> None:
    capture = ids("pytorch_input_slow")
    report, steps = read(f"captures/{capture}/report"), read(f"captures/{capture}/views/steps")
    # Five steps were recorded, and the causes of each sum to its time.
    assert len(steps["index"]) == report["steps"]["used"] == 5
    assert [sum(parts) for parts in zip(*steps["total_ns"], strict=True)] == steps["duration_ns"]
    frame = opened("report", capture)
    wait = report["overview"]["input_wait_share"]
    assert (
        wait > 0.3
    )  # the demo's label says that input takes more than half of the time that can be saved
    strip = _text(frame.get_by_role("region", name=re.compile(r"^Where a .+ step goes$")))
    assert f"{100 * wait:.1f} %" in strip
    frame = opened("time", capture)
    card = frame.get_by_role("region", name="Time per step by cause")
    card.wait_for()
    head = _text(frame.locator(".headline"))
    assert f"median {_duration(report['steps']['median_ns'])}" in head
    assert f"slowest {_duration(max(steps['duration_ns']))}" in head
    chart = card.get_by_role("img", name="Step times stacked by cause, 5 steps")
    causes = sum(any(totals) for totals in steps["total_ns"])
    assert chart.locator("g[data-part='bar'] rect").count() >= causes
    table = frame.get_by_role("group", name="All steps")
    input_ns = steps["total_ns"][steps["causes"].index("input")]
    for place, index in enumerate(steps["index"]):
        row = _text(table.get_by_role("row").nth(place + 1))
        assert row.split()[0] == str(index)
        assert _duration(steps["duration_ns"][place]) in row
        assert _duration(input_ns[place]) in row


def test_memory_page_shows_the_peak_and_what_holds_it(
    opened: Opener, ids: Callable[[str], str], read: Reader
) -> None:
    capture = ids("tensorflow_input_slow")
    view = read(f"captures/{capture}/views/memory")
    peak, largest = max(view["allocated_bytes"]), view["alive"][0]
    assert sum(holder["bytes"] for holder in view["alive"]) <= peak
    frame = opened("memory", capture)
    heading = frame.get_by_role("heading", level=1)
    assert f"Peak host memory: {_bytes(peak)}" in _text(heading)
    row = frame.get_by_role("group", name="Allocated at the peak").get_by_role("row").nth(1)
    assert largest["operator"] in _text(row)
    assert _bytes(largest["bytes"]) in _text(row)
    assert f"{100 * largest['bytes'] / peak:.1f} %" in _text(row)
    assert (
        frame.get_by_role("img", name=re.compile("^Peak host memory")).locator("path").count() >= 1
    )


def test_a_page_without_data_says_so(
    opened: Opener, ids: Callable[[str], str], read: Reader
) -> None:
    capture = ids("synthetic_gpu_allreduce_8rank")
    assert read(f"captures/{capture}/views/memory") is None
    frame = opened("memory", capture)
    frame.get_by_role("heading", level=1, name="Memory: nothing in this recording").wait_for()


def test_comparison_shows_the_change_and_survives_a_reload(
    opened: Opener, ids: Callable[[str], str], read: Reader
) -> None:
    base, target = ids("pytorch_input_slow"), ids("pytorch_input_fixed")
    comparison = read(f"compare?base={base}&target={target}")["targets"][0]
    assert comparison["verdict"] == "faster"
    frame = opened("compare", base, base=base)
    frame.get_by_role("checkbox", name="pytorch_input_fixed").check()
    heading = frame.get_by_role("heading", level=2, name=comparison["headline"])
    heading.wait_for()
    page = heading.page
    page.reload()
    heading.wait_for()
    text = _text(frame.locator("main"))
    assert f"−{_duration(-comparison['change']['change_ns'])} per step" in text
    findings = {finding["rule_id"]: finding for finding in comparison["findings"]}
    assert f"achieved {_duration(findings['input-stall']['achieved_ns'])} less" in text
    assert findings["loader-in-main-process"]["achieved_ns"] is None
    assert "achieved time counted above" in text
    assert f"{comparison['change']['speed_up']:.2f}×" in text


def test_rules_page_filters_by_outcome(
    opened: Opener, ids: Callable[[str], str], read: Reader
) -> None:
    capture = ids("pytorch_input_slow")
    rules = read("rules")["rules"]
    report = read(f"captures/{capture}/report")
    passed = [item["rule_id"] for item in report["outcomes"] if item["status"] == "passed"]
    frame = opened("about", capture)
    frame.get_by_role("heading", name=f"What is checked: {len(rules)} rules").wait_for()
    frame.get_by_role("button", name=re.compile("Passed")).click()
    rows = frame.get_by_role("group", name="Rules", exact=True).locator("tbody tr")
    assert rows.count() == len(passed)
    # The link of an outcome opens the finding on the report page, and the URL names it.
    frame.get_by_role("button", name=re.compile("^All")).click()
    frame.get_by_role("searchbox", name="Find a rule").fill("loader-in-main")
    assert rows.count() == 1
    rows.get_by_role("link", name="Found").click()
    row = frame.locator("[aria-controls='finding-loader-in-main-process']")
    row.wait_for()
    assert row.get_attribute("aria-expanded") == "true"


def test_files_page_lists_the_captures(
    opened: Opener, ids: Callable[[str], str], read: Reader, captures: list[dict[str, Any]]
) -> None:
    frame = opened("about", ids("jax_healthy"))
    scanned = read("doctor")["scan"]["scanned_files"]
    heading = f"{len(captures)} captures in {scanned} files"
    frame.get_by_role("heading", level=1, name=heading).wait_for()
    frame.get_by_role("searchbox", name="Find a capture").fill("allreduce fixed")
    rows = frame.get_by_role("group", name="Captures").get_by_role("row")
    assert rows.count() == 2  # the header and one run
    assert "synthetic_gpu_allreduce_8rank_fixed" in _text(rows.nth(1))


def test_pages_and_sorting_work_with_the_keyboard(
    opened: Opener, ids: Callable[[str], str]
) -> None:
    frame = opened("report", ids("synthetic_gpu_allreduce_8rank"))
    link = frame.get_by_role("navigation", name="Pages").get_by_role("link", name="Ranks")
    link.focus()
    link.press("Enter")
    frame.get_by_role("heading", level=2, name="All ranks").wait_for()
    assert link.get_attribute("aria-current") == "page"
    sort = frame.get_by_role("button", name="Waiting", exact=True)
    sort.focus()
    sort.press("Enter")
    header = frame.get_by_role("columnheader", name="Waiting")
    assert header.get_attribute("aria-sort") == "descending"


WIDTHS = (360, 768, 1280, 1920, 3840)
VIEWS = {
    "report": "pytorch_ddp_straggler",
    "time": "pytorch_input_slow",
    "compare": "pytorch_input_slow",
    "ranks": "pytorch_ddp_straggler",
    "device": "synthetic_gpu_allreduce_8rank",
    "input": "tensorflow_input_slow",
    "host": "pytorch_input_slow",
    "memory": "tensorflow_input_slow",
    "about": "jax_healthy",
    "rule": "pytorch_input_slow",
    "finding": "pytorch_input_slow",
    "runs": "jax_healthy",
}
# These differ most when they open in a narrow window; the others do it at night.
WHEN_NARROW = ("report", "compare", "runs")


# Some versions of Chromium hide a box that is higher than the lines that are left.
BOXES_IN_CLAMPED_LINES = """() => [...document.querySelectorAll("*")]
  .filter((element) => getComputedStyle(element).webkitLineClamp !== "none")
  .flatMap((element) => [...element.querySelectorAll("*")])
  .filter((child) => getComputedStyle(child).display !== "inline")
  .map((child) => child.outerHTML)"""


@pytest.mark.parametrize(
    ("view", "opened_at"),
    [
        *((view, 1280) for view in VIEWS),
        *((view, 360) for view in WHEN_NARROW),
        *(pytest.param(v, 360, marks=pytest.mark.nightly) for v in VIEWS if v not in WHEN_NARROW),
    ],
)
def test_pages_are_steady_at_every_width(
    opened: Opener,
    ids: Callable[[str], str],
    captures: list[dict[str, Any]],
    report_of: Callable[[str], dict[str, Any]],
    view: str,
    opened_at: int,
) -> None:
    """The layout does not shift, and no width scrolls sideways."""
    rest = {}
    if view == "compare":
        rest = {"base": ids("pytorch_input_slow"), "target": ids("pytorch_input_fixed")}
    if view == "runs":  # rows grow as they fill in
        for capture in captures:
            report_of(capture["id"])
    if view == "rule":
        rest = {"view": "about", "rule": "input-stall"}
    if view == "finding":
        rest = {"view": "report", "finding": "loader-in-main-process"}
    frame = opened(rest.pop("view", view), ids(VIEWS[view]), width=opened_at, **rest)
    if view == "compare":
        frame.get_by_role("heading", level=2, name="All runs").wait_for()
    html = frame.locator("html")
    settle(frame)
    assert sum(html.evaluate("shifts")) < 0.05  # web.dev calls 0.1 good
    assert html.evaluate(BOXES_IN_CLAMPED_LINES) == []
    for width in WIDTHS if opened_at == WIDTHS[2] else ():
        html.page.set_viewport_size({"width": width, "height": 1000})
        html.evaluate("html => new Promise(done => setTimeout(done, 150))")  # let charts redraw
        assert html.evaluate("html => html.clientWidth") > width / 2
        assert html.evaluate("html => html.scrollWidth - html.clientWidth") <= 0, width
