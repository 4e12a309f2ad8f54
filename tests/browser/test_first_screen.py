"""The first screen of a report: what to change, and beside it where that costs time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from tests.support.browser import (
    Visitor,
    captures_at,
    eventually,
    link,
    open_part,
    report_at,
    serving,
    settle,
    text_of,
    violations,
)

# A common window, in which TensorBoard's own bar takes a part of the height.
SCREEN = {"width": 1400, "height": 900}

# How far the first finding's title and saving reach below the window; 0 where they are in it.
BELOW = """() => Math.max(0, ...["title", "size"].map((part) =>
  document.querySelector(`.finding-${part}`).getBoundingClientRect().bottom - innerHeight))"""


def has_findings(server: str, capture: str) -> bool:
    """Whether a report has findings; a file may be too damaged for any report."""
    try:
        findings = report_at(server, capture)["findings"]
    except HTTPError as error:
        if error.code != 422:
            raise
        return False
    return bool(findings)


def check_first_screen(visitor: Visitor, server: str, captures: list[dict[str, Any]]) -> int:
    """Expect the first finding of each capture in view, and tell how many have one."""
    visitor.page.set_viewport_size(SCREEN)
    below, seen = [], 0
    for capture in captures:
        if not has_findings(server, capture["id"]):
            continue
        tab = visitor.open(f"{server}/{link(capture['id'])}")
        tab.locator(".finding-title").first.wait_for()
        settle(tab)
        html = tab.locator("html")
        if html.evaluate(BELOW) > 0 or html.evaluate("() => scrollY") > 0:
            below.append(capture["run"])
        seen += 1
    assert below == []
    return seen


@pytest.mark.nightly
def test_the_first_finding_of_every_demo_is_in_view(
    visitor: Visitor, address: str, captures: list[dict[str, Any]]
) -> None:
    assert check_first_screen(visitor, address, captures) >= 10


@pytest.fixture(scope="module")
def recordings(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cache = tmp_path_factory.mktemp("cache")
    with serving("--logdir", str(corpus), cache=cache) as server:
        yield server


@pytest.mark.nightly
def test_the_first_finding_of_every_recording_is_in_view(visitor: Visitor, recordings: str) -> None:
    captures = captures_at(recordings)
    assert check_first_screen(visitor, recordings, captures) > len(captures) / 2


def drawn(tab: Any) -> str:
    """The range that the timeline shows."""
    place: str = tab.locator("canvas[data-drawn]").first.get_attribute("data-drawn")
    return place


@pytest.mark.smoke
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_timeline_follows_the_finding(
    visitor: Visitor, address: str, ids: Callable[[str], str], dark: bool
) -> None:
    capture = ids("pytorch_ddp_straggler")
    report = report_at(address, capture)
    visitor.page.set_viewport_size(SCREEN)
    tab = visitor.open(f"{address}/{link(capture)}", dark=dark)
    rows = tab.locator(".finding-row")
    # The one to begin with is open, with its code first, and its time is marked. The headline says
    # what it is about.
    title = report["findings"][report["first"]["index"]]["title"]
    change, about = title.replace("`", "").split(": ", 1)
    assert about.lower() in text_of(tab.get_by_role("heading", level=1)).lower()
    opened = tab.locator("[aria-expanded=true].finding-row")
    assert text_of(opened) == change
    tab.locator(".finding-body .code").first.wait_for()
    tab.get_by_text(re.compile(r"^Step \d+, .* in view; shaded: affected time")).wait_for()
    step = drawn(tab)
    # Arrow keys go through the list, and Enter opens.
    opened.focus()
    at = [text_of(row) for row in rows.all()].index(text_of(opened))
    key, to = ("ArrowDown", at + 1) if at + 1 < rows.count() else ("ArrowUp", at - 1)
    opened.press(key)
    assert rows.nth(to).evaluate("row => row === document.activeElement")
    rows.nth(to).press("Enter")
    assert [row.get_attribute("aria-expanded") == "true" for row in rows.all()].index(True) == to
    assert tab.locator("[aria-expanded=true].finding-row").count() == 1
    # An event of the evidence, and back to the step.
    open_part(tab, "Evidence")
    tab.locator(".finding-body .event-button").first.click()
    tab.get_by_text(re.compile("around the event")).wait_for()
    eventually(visitor.page, lambda: drawn(tab) != step)
    assert violations(tab) == []
    tab.get_by_role("button", name="Whole step").click()
    tab.get_by_text(re.compile(r"^Step \d+, .* in view")).wait_for()
    # What is read moves, the timeline stays.
    tab.locator("html").evaluate("() => scrollTo(0, 200)")
    pane = tab.locator(".pane")
    assert pane.evaluate("pane => pane.getBoundingClientRect().top") >= 0
    assert violations(tab) == []


@pytest.mark.smoke
def test_a_narrow_window_has_the_timeline_in_the_finding(
    opened: Callable[..., Any], ids: Callable[[str], str]
) -> None:
    tab = opened("report", ids("pytorch_input_slow"), width=400)
    tab.locator(".finding-body canvas[data-drawn]").wait_for()
    assert tab.locator(".pane").count() == 0
    assert tab.locator("html").evaluate("html => html.scrollWidth <= html.clientWidth")
    assert violations(tab) == []
    tab.locator("[aria-expanded=true].finding-row").click()
    assert tab.locator("canvas[data-drawn]").count() == 0


def test_what_is_below_stays_where_it_was_clicked(
    opened: Callable[..., Any], ids: Callable[[str], str]
) -> None:
    tab = opened("report", ids("tensorflow_input_slow"), width=1400)
    settle(tab)
    last = tab.locator(".finding-row").last
    last.scroll_into_view_if_needed()
    before = last.bounding_box()["y"]
    last.click()
    settle(tab)
    # The page moves with what closes above, as far as it can.
    top = tab.locator("html").evaluate("() => scrollY")
    assert abs(last.bounding_box()["y"] - before) < 2 or top == 0
