"""The table of rules and the page of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.browser import Visitor, link, settle, text_of


def test_table_begins_with_what_was_found_and_rows_open_pages(
    visitor: Visitor,
    address: str,
    ids: Callable[[str], str],
    read: Callable[[str], Any],
) -> None:
    capture = ids("pytorch_input_slow")
    findings = read(f"captures/{capture}/report")["findings"]
    rules = {rule["id"]: rule for rule in read("rules")["rules"]}
    page, tab = visitor.page, visitor.tab()
    visitor.open(f"{address}/{link(capture, view='about')}")
    tab.get_by_role("heading", name=f"What is checked: {len(rules)} rules").wait_for()
    rows = tab.get_by_role("group", name="Rules", exact=True).locator("tbody tr")
    for place, finding in enumerate(findings):
        text = text_of(rows.nth(place))
        assert rules[finding["rule_id"]]["title"] in text
        assert "Found" in text
    assert "Found" not in text_of(rows.nth(len(findings)))

    # A search finds a rule by its id, and its row opens its page.
    tab.get_by_role("searchbox", name="Find a rule").fill("loader-in-main")
    rows.get_by_role("link").first.click()
    title = rules["loader-in-main-process"]["title"]
    tab.get_by_role("heading", level=1, name=title).wait_for()
    tab.get_by_role("heading", name="What it finds").wait_for()
    assert "p.perf_advisor.rule=loader-in-main-process" in page.url

    # A reload stays there, Back returns to the table, and the finding is a click away.
    page.reload()
    tab.get_by_role("heading", level=1, name=title).wait_for()
    found = tab.get_by_role("region", name="In this capture").get_by_role("link")
    found.wait_for()
    found.click()
    row = tab.locator("[aria-controls='finding-loader-in-main-process']")
    row.wait_for()
    assert row.get_attribute("aria-expanded") == "true"
    page.go_back()
    page.go_back()
    tab.get_by_role("heading", name=f"What is checked: {len(rules)} rules").wait_for()


@pytest.mark.parametrize("rule", [None, "input-stall"])
def test_a_report_that_arrives_late_moves_nothing(
    visitor: Visitor, address: str, ids: Callable[[str], str], rule: str | None
) -> None:
    """The rules arrive a second before the report, which adds their outcomes."""
    capture = ids("pytorch_input_slow")
    page, tab = visitor.page, visitor.tab()
    page.set_viewport_size({"width": 360, "height": 1000})

    def delay(route: Any) -> None:
        page.wait_for_timeout(1000)
        route.continue_()

    page.route("**/report", delay)
    rest = {} if rule is None else {"rule": rule}
    visitor.open(f"{address}/{link(capture, view='about', **rest)}")
    tab.get_by_text("Found").first.wait_for()
    settle(tab)
    assert sum(tab.locator("html").evaluate("shifts")) < 0.02


def test_rules_without_a_capture_and_a_rule_that_is_not_there(
    visitor: Visitor, address: str
) -> None:
    tab = visitor.open(f"{address}/#perf_advisor&p.perf_advisor.view=about")
    tab.get_by_role("columnheader", name="Category").wait_for()
    assert tab.get_by_role("columnheader", name="Outcome").count() == 0
    visitor.open(f"{address}/#perf_advisor&p.perf_advisor.view=about&p.perf_advisor.rule=no-such")
    tab.get_by_role("heading", name="there is no such rule").wait_for()
    visitor.errors.clear()  # the browser logs the failed request
