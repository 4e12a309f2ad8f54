"""The tab in a real Chromium, on a real TensorBoard with the demo profiles."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.browser import PATIENCE_MS, change_of, link


@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.nightly), "dark"])
def test_every_capture_shows_its_first_finding(
    browser: Any,
    address: str,
    captures: list[dict[str, Any]],
    report_of: Callable[[str], dict[str, Any]],
    theme: str,
) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(PATIENCE_MS)
    errors: list[str] = []
    requests: list[str] = []
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    try:
        assert len(captures) >= 12
        page.goto(f"{address}/?darkMode={str(theme == 'dark').lower()}#perf_advisor")
        frame = page.frame_locator("iframe[src*='perf_advisor']")
        frame.get_by_role("heading", level=1).wait_for()
        for capture in captures:
            report = report_of(capture["id"])
            # Follow a link within the page, which is faster than loading TensorBoard again.
            page.evaluate("hash => { location.hash = hash }", link(capture["id"]))
            heading = frame.get_by_role("heading", level=1, name=report["headline"])
            heading.wait_for()
            if report["findings"]:
                change = change_of(report["findings"][0])
                row = frame.get_by_role("button", name=re.compile(re.escape(change))).first
                if row.get_attribute("aria-expanded") == "false":
                    row.click()
                summary = frame.get_by_text(report["findings"][0]["summary"]).first
                summary.wait_for()
            background = frame.locator("body").evaluate(
                "body => getComputedStyle(body).backgroundColor"
            )
            channels = [int(channel) for channel in re.findall(r"\d+", background)[:3]]
            assert (sum(channels) < 3 * 128) == (theme == "dark"), background
        assert not errors
        foreign = [url for url in requests if not url.startswith((address, "data:", "blob:"))]
        assert not foreign
    finally:
        page.close()
