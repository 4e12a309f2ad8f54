"""Ticked changes: where the step lands, and the address that says which."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.browser import read, text_of, violations


@pytest.mark.parametrize("width", [1280, 400])
def test_ticked_changes_shrink_the_step(
    opened: Callable[..., Any], ids: Callable[[str], str], address: str, width: int
) -> None:
    capture = ids("synthetic_gpu_allreduce_8rank")
    report = read(address, f"captures/{capture}/report")
    query = "finding=0&finding=1"
    saving = read(address, f"captures/{capture}/combination?{query}")
    frame = opened("report", capture, width=width)
    frame.get_by_text("Tick changes to see where they lead together.").wait_for()
    boxes = frame.get_by_role("checkbox", name=re.compile("^Count this change"))
    boxes.nth(0).check()
    boxes.nth(1).press("Space")
    panel = frame.locator(".what-if")
    panel.get_by_text("with 2 changes").wait_for()
    outcome = panel.locator(".what-if-outcome")
    outcome.wait_for()
    after_ms = (report["overview"]["step_time_ns"] - saving["expected_ns"]) / 1e6
    assert f"{after_ms:.1f} ms" in text_of(outcome)
    assert violations(frame) == []
    # A copied link has them ticked.
    url = frame.locator("body").evaluate("() => parent.location.hash")
    again = opened("report", capture, **{"if": re.search(r"perf_advisor\.if=([^&]*)", url)[1]})  # type: ignore[index]
    assert again.locator(".what-if-outcome").inner_text() == outcome.inner_text()
    panel.get_by_role("button", name="Clear").click()
    panel.locator(".what-if-outcome").wait_for(state="detached")
    assert boxes.nth(0).is_checked() is False
