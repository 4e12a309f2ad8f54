"""The views beside the report: numbers of the routes, tables, links, accessibility."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

Reader = Callable[[str], dict[str, Any]]
Opener = Callable[..., Any]
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))


def _duration(ns: float) -> str:
    """Three digits and a unit, as the tab writes them."""
    for size, unit in _UNITS:
        if abs(ns) >= size * 0.9995:
            value = ns / size
            digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
            return f"{value:.{digits}f} {unit}"
    return f"{ns:.0f} ns"


def _bytes(size: float) -> str:
    """Three digits and a binary unit, as the tab writes them."""
    units = iter(("B", "KiB", "MiB", "GiB"))
    unit = next(units)
    while size >= 1024:
        size, unit = size / 1024, next(units)
    return f"{size:.{0 if size >= 99.95 else 1 if size >= 9.995 else 2}f} {unit}"


def _text(locator: Any) -> str:
    """Its text; spaces that do not break count as spaces."""
    text: str = locator.inner_text().replace("\xa0", " ")
    return text


def test_ranks_name_the_late_one(opened: Opener, ids: Callable[[str], str], read: Reader) -> None:
    capture = ids("pytorch_ddp_straggler")
    view = read(f"captures/{capture}/views/ranks")
    assert view["late"] == [1]  # by the demo's label, rank 1 is the slow one
    frame = opened("ranks", capture)
    late = _duration(view["late_ns"][1])
    heading = f"The others wait {late} a step for rank 1"
    frame.get_by_role("heading", level=1, name=heading).wait_for()
    row = frame.get_by_role("row").filter(has_text="rank 1")
    assert late in _text(row)
    assert _duration(view["step_ns"][1]) in _text(row)
    cells = frame.get_by_role("img", name=re.compile("^Time per step of 2 ranks")).locator("rect")
    # Every rank has a cell for every cause, twice: the ground and the color.
    assert cells.count() >= 2 * len(view["causes"])


def test_input_shows_the_stall_and_the_bottleneck(
    opened: Opener, ids: Callable[[str], str], read: Reader
) -> None:
    capture = ids("tensorflow_input_slow")
    view = read(f"captures/{capture}/views/input")
    worst = view["iterators"][view["bottleneck"]]
    assert worst["kind"] == "MapAndBatch"
    frame = opened("input", capture)
    stall = _duration(view["stall_ns"])
    heading = f"The step waits {stall} for input, most of it in MapAndBatch"
    frame.get_by_role("heading", level=1, name=heading).wait_for()
    row = _text(frame.get_by_role("row").filter(has_text="bottleneck"))
    assert _duration(worst["stall_ns"]) in row
    assert _duration(worst["function_ns"]) in row
    assert "batch 24" in row


def test_kernels_sort_and_filter(opened: Opener, ids: Callable[[str], str], read: Reader) -> None:
    capture = ids("synthetic_gpu_allreduce_8rank")
    points = read(f"captures/{capture}/views/kernels")["points"]
    steps = read(f"captures/{capture}/report")["overview"]["steps"]
    frame = opened("kernels", capture)
    table = frame.get_by_role("group", name="All kernels")
    first = table.get_by_role("row").nth(1)
    assert points[0]["name"] in _text(first)
    assert _duration(points[0]["total_ns"] / steps) in _text(first)
    # By time from the smallest on: the last of the route comes first.
    sort = table.get_by_role("button", name="Per step")
    sort.click()
    sort.click()
    assert table.get_by_role("columnheader", name="Per step").get_attribute("aria-sort") == (
        "ascending"
    )
    smallest = min(points, key=lambda point: point["total_ns"])
    assert _duration(smallest["total_ns"] / steps) in _text(table.get_by_role("row").nth(1))


def test_the_report_has_its_numbers_and_its_steps(
    opened: Opener, ids: Callable[[str], str], read: Reader
) -> None:
    capture = ids("pytorch_input_slow")
    report, steps = read(f"captures/{capture}/report"), read(f"captures/{capture}/views/steps")
    # Five steps were recorded; the steps' times and their parts are those of the view.
    assert len(steps["index"]) == report["steps"]["used"] == 5
    assert [sum(parts) for parts in zip(*steps["total_ns"], strict=True)] == steps["duration_ns"]
    frame = opened("report", capture)
    wait = report["overview"]["input_wait_share"]
    assert wait > 0.3  # by the demo's label more than half of the saved time is its input's
    numbers = _text(frame.get_by_role("region", name="Key numbers"))
    assert f"{100 * wait:.1f} %" in numbers
    frame = opened("steps", capture)
    card = frame.get_by_role("region", name="Where each step goes")
    card.wait_for(timeout=10_000)
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


def test_memory_shows_the_peak_and_who_holds_it(
    opened: Opener, ids: Callable[[str], str], read: Reader
) -> None:
    capture = ids("tensorflow_input_slow")
    view = read(f"captures/{capture}/views/memory")
    peak, largest = max(view["allocated_bytes"]), view["alive"][0]
    assert sum(one["bytes"] for one in view["alive"]) <= peak
    frame = opened("memory", capture)
    heading = frame.get_by_role("heading", level=1)
    assert f"At its peak the program holds {_bytes(peak)} of host memory" in _text(heading)
    row = frame.get_by_role("group", name="What is alive at the peak").get_by_role("row").nth(1)
    assert largest["operator"] in _text(row)
    assert _bytes(largest["bytes"]) in _text(row)
    assert f"{100 * largest['bytes'] / peak:.1f} %" in _text(row)
    assert frame.get_by_role("img", name=re.compile("^At its peak")).locator("path").count() >= 1


def test_memory_that_was_not_recorded_says_how(
    opened: Opener, ids: Callable[[str], str], read: Reader
) -> None:
    capture = ids("synthetic_gpu_allreduce_8rank")
    assert read(f"captures/{capture}/views/memory") is None
    frame = opened("memory", capture)
    assert "profile_memory=True" in _text(frame.locator("main"))


def test_comparison_shows_the_change_and_survives_a_reload(
    opened: Opener, ids: Callable[[str], str], read: Reader
) -> None:
    base, target = ids("pytorch_input_slow"), ids("pytorch_input_fixed")
    found = read(f"compare?base={base}&target={target}")["targets"][0]
    assert found["verdict"] == "faster"
    frame = opened("compare", base, base=base)
    frame.get_by_role("checkbox", name="pytorch_input_fixed").check()
    heading = frame.get_by_role("heading", level=2, name=found["headline"])
    heading.wait_for(timeout=20_000)
    page = heading.page
    page.reload()
    heading.wait_for(timeout=20_000)
    text = _text(frame.locator("main"))
    assert f"−{_duration(-found['change']['change_ns'])} a step" in text
    achieved = next(one for one in found["findings"] if one["rule_id"] == "loader-in-main-process")
    assert f"achieved {_duration(achieved['achieved_ns'])} less" in text
    assert f"{found['change']['speed_up']:.2f}×" in text


def test_rules_are_found_by_words_and_by_outcome(
    opened: Opener, ids: Callable[[str], str], read: Reader
) -> None:
    capture = ids("pytorch_input_slow")
    rules = read("rules")["rules"]
    outcomes = read(f"captures/{capture}/report")["outcomes"]
    missing = [one for one in outcomes if one["status"] == "not_applicable"]
    frame = opened("rules", capture)
    frame.get_by_role("heading", level=1, name=f"{len(rules)} rules").wait_for()
    frame.get_by_role("button", name=re.compile("Not checked")).click()
    cards = frame.locator("li.rule")
    assert cards.count() == len(missing)
    reason = missing[0]["missing"][0]["reason"].replace("`", "")
    assert f"{reason[0].upper()}{reason[1:]}." in _text(frame.locator("main"))
    frame.get_by_role("button", name="All", exact=True).click()
    frame.get_by_role("searchbox", name="Find a rule").fill("loader-in-main")
    assert cards.count() == 1
    cards.get_by_role("button", name="Show", exact=True).click()
    # The finding opens in the report, and the address says so.
    opened_row = frame.get_by_role("button", name=re.compile("Load batches in worker processes"))
    opened_row.first.wait_for()
    assert opened_row.first.get_attribute("aria-expanded") == "true"
    page = frame.locator("main").page
    assert "p.perf_advisor.finding=loader-in-main-process" in page.url


def test_files_lists_what_was_read(
    opened: Opener, ids: Callable[[str], str], read: Reader, captures: list[dict[str, Any]]
) -> None:
    frame = opened("files", ids("jax_healthy"))
    scanned = read("doctor")["scan"]["scanned_files"]
    heading = f"{len(captures)} captures in {scanned} files"
    frame.get_by_role("heading", level=1, name=heading).wait_for()
    frame.get_by_role("searchbox", name="Find a capture").fill("allreduce fixed")
    rows = frame.get_by_role("group", name="Captures").get_by_role("row")
    assert rows.count() == 2  # the head and one run
    assert "synthetic_gpu_allreduce_8rank_fixed" in _text(rows.nth(1))


def test_views_are_reached_and_sorted_with_the_keyboard(
    opened: Opener, ids: Callable[[str], str]
) -> None:
    frame = opened("report", ids("synthetic_gpu_allreduce_8rank"))
    button = frame.get_by_role("navigation", name="Views").get_by_role("button", name="Ranks")
    button.focus()
    button.press("Enter")
    frame.get_by_role("heading", level=2, name="All ranks").wait_for()
    assert button.get_attribute("aria-current") == "page"
    sort = frame.get_by_role("button", name="Waits", exact=True)
    sort.focus()
    sort.press("Enter")
    header = frame.get_by_role("columnheader", name="Waits")
    assert header.get_attribute("aria-sort") == "descending"


WIDTHS = (360, 768, 1280, 1920, 3840)
VIEWS = {
    "report": "pytorch_ddp_straggler",
    "steps": "pytorch_input_slow",
    "compare": "pytorch_input_slow",
    "ranks": "pytorch_ddp_straggler",
    "input": "tensorflow_input_slow",
    "kernels": "synthetic_gpu_allreduce_8rank",
    "memory": "tensorflow_input_slow",
    "rules": "pytorch_input_slow",
    "files": "jax_healthy",
}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_bars_anyone(
    opened: Opener, ids: Callable[[str], str], view: str, dark: bool
) -> None:
    """axe finds no violation, nothing jumps, and no width to 4K scrolls sideways."""
    axe = pytest.importorskip("axe_playwright_python")
    rest = {}
    if view == "compare":
        rest = {"base": ids("pytorch_input_slow"), "target": ids("pytorch_input_fixed")}
    frame = opened(view, ids(VIEWS[view]), width=360 if dark else 1280, dark=dark, **rest)
    if view == "compare":
        frame.get_by_role("heading", level=2, name="All runs").wait_for(timeout=20_000)
    html = frame.locator("html")
    html.evaluate("html => new Promise(done => setTimeout(done, 300))")  # fetched views unfold
    source = (Path(axe.__file__).parent / "axe.min.js").read_text()
    html.evaluate(f"() => {{ {source} }}")
    found = html.evaluate("async () => (await axe.run(document)).violations")
    assert [(one["id"], [node["html"] for node in one["nodes"][:3]]) for one in found] == []
    assert sum(html.evaluate("shifts")) < 0.05  # web.dev calls 0.1 good
    for width in WIDTHS:
        html.page.set_viewport_size({"width": width, "height": 1000})
        html.evaluate("html => new Promise(done => setTimeout(done, 150))")  # charts are redrawn
        assert html.evaluate("html => html.clientWidth") > width / 2
        assert html.evaluate("html => html.scrollWidth - html.clientWidth") <= 0, width
