"""The tab in a real Chromium, on a real TensorBoard with the demo profiles."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_capture_shows_its_first_finding(
    browser: Any,
    address: str,
    captures: list[dict[str, Any]],
    report_of: Callable[[str], dict[str, Any]],
    theme: str,
) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    errors: list[str] = []
    requests: list[str] = []
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    try:
        assert len(captures) >= 12
        for index, capture in enumerate(captures):
            report = report_of(capture["id"])
            # A new query forces a page load, which a new hash does not.
            dark = "true" if theme == "dark" else "false"
            page.goto(
                f"{address}/?darkMode={dark}&visit={index}"
                f"#perf_advisor&p.perf_advisor.capture={capture['id']}"
            )
            frame = page.frame_locator("iframe[src*='perf_advisor']")
            heading = frame.get_by_role("heading", level=1)
            heading.wait_for(timeout=30_000)
            # The tab has no-break spaces between numbers and units.
            assert report["headline"] in heading.inner_text().replace("\xa0", " ")
            if report["findings"]:
                title = report["findings"][0]["title"]
                row = frame.get_by_role("button", name=re.compile(re.escape(title))).first
                row.wait_for(timeout=10_000)
                row.click()
                summary = frame.get_by_text(report["findings"][0]["summary"]).first
                summary.wait_for(timeout=10_000)
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


def test_narrow_windows_do_not_scroll_sideways(
    browser: Any,
    address: str,
    captures: list[dict[str, Any]],
    report_of: Callable[[str], dict[str, Any]],
) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 740})
    try:
        capture = next(c for c in captures if c["run"] == "pytorch_ddp_straggler")
        report_of(capture["id"])
        page.goto(f"{address}/#perf_advisor&p.perf_advisor.capture={capture['id']}")
        frame = page.frame_locator("iframe[src*='perf_advisor']")
        frame.get_by_role("heading", level=1).wait_for(timeout=30_000)
        overflow = frame.locator("html").evaluate("html => html.scrollWidth - html.clientWidth")
        assert overflow <= 0
    finally:
        page.close()
