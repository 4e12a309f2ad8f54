"""Comparisons in the tab: suggestions, and what a run that got slower looks like."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.support.browser import Visitor, link, open_part, text_of

SLOW, FIXED = "pytorch_input_slow", "pytorch_input_fixed"
GREEN, RED = "rgb(26, 127, 75)", "rgb(192, 52, 29)"


def color_of(locator: Any) -> str:
    color: str = locator.evaluate("element => getComputedStyle(element).fill")
    return color


def test_report_suggests_its_partner_in_the_right_order(
    visitor: Visitor, address: str, ids: Callable[[str], str]
) -> None:
    slow, fixed = ids(SLOW), ids(FIXED)
    page, tab = visitor.page, visitor.tab()
    # The base is the run before the change, whichever of the two is open.
    for capture, other in ((slow, FIXED), (fixed, SLOW)):
        visitor.open(f"{address}/{link(capture)}")
        tab.get_by_text("Compare with…").click()
        tab.get_by_role("link", name=re.compile(f"^{other}")).click()
        tab.get_by_role("heading", level=2, name=re.compile("times as fast")).wait_for()
        assert f"base={slow}" in page.url
        assert f"target={fixed}" in page.url
        tab.get_by_text("Fixed", exact=True).first.wait_for()


def test_slower_run_gets_no_praise(
    visitor: Visitor, address: str, ids: Callable[[str], str]
) -> None:
    slow, fixed = ids(SLOW), ids(FIXED)
    tab = visitor.open(f"{address}/{link(fixed, view='compare', base=fixed, target=slow)}")
    tab.get_by_role("heading", level=2, name=re.compile("times as long")).wait_for()
    assert tab.get_by_text("Fixed", exact=True).count() == 0
    badge = tab.locator(".badge", has_text="Slower")
    assert badge.evaluate("badge => getComputedStyle(badge).color") == RED
    # What grew is red and to the right of the axis, what fell is green and to the left of it.
    bars = tab.get_by_role("region", name="Change by cause").locator("svg [data-part='bar'] rect")
    bars.first.wait_for()
    boxes = [(color_of(bar), bar.bounding_box()) for bar in bars.all()]
    axis = max(box["x"] + box["width"] for color, box in boxes if color == GREEN)
    assert {color for color, _ in boxes} == {GREEN, RED}
    assert all(box["x"] >= axis - 1 for color, box in boxes if color == RED)


def test_other_programs_are_not_comparable(
    visitor: Visitor, address: str, ids: Callable[[str], str]
) -> None:
    base, target = ids("jax_healthy"), ids(FIXED)
    tab = visitor.open(f"{address}/{link(base, view='compare', base=base, target=target)}")
    heading = tab.get_by_role("heading", level=2, name=re.compile("^Not comparable"))
    heading.wait_for()
    assert "different frameworks" in text_of(heading)
    assert "times as" not in text_of(tab.locator("main"))


def test_modules_are_compared(visitor: Visitor, address: str, ids: Callable[[str], str]) -> None:
    base, target = ids("synthetic_gpu_allreduce_8rank"), ids("synthetic_gpu_allreduce_8rank_fixed")
    tab = visitor.open(f"{address}/{link(base, view='compare', base=base, target=target)}")
    row = tab.get_by_role("group", name="Modules").locator("tbody tr")
    row.wait_for()
    assert text_of(row).split("\t")[-7:] == [
        *("faster", "39.9 ms", "88.3 µs", "−39.8 ms", "1", "1", "451.87×")
    ]


def test_link_to_a_finding_is_copied_and_opens_it(
    visitor: Visitor, address: str, ids: Callable[[str], str], read: Callable[[str], Any]
) -> None:
    capture = ids(SLOW)
    finding = read(f"captures/{capture}/report")["findings"][0]["rule_id"]
    page, tab = visitor.page, visitor.tab()
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visitor.open(f"{address}/{link(capture, finding=finding)}")
    body = tab.locator(f"#finding-{finding}")
    open_part(body, "About")
    body.get_by_role("button", name="Copy link").click()
    body.get_by_text("Copied").first.wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    start, _, values = copied.partition("#perf_advisor&")
    assert start == f"{address}/"
    assert sorted(values.split("&")) == [
        f"p.perf_advisor.capture={capture}",
        f"p.perf_advisor.finding={finding}",
    ]
    open_part(body, "Change")
    # Code has colors, and the argument to change is marked.
    assert tab.locator(".remedies .code-class").count() > 0
    marked = [text_of(mark) for mark in tab.locator(".remedies mark").all()]
    assert "num_workers=4" in marked
