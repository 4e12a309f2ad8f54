"""A note on a finding: written in the tab, there after a reload, and last in the list."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tests.support.browser import open_part, text_of, violations

SENTENCE = "The disk is slow until May."


def test_note_is_written_and_read_again(
    opened: Callable[..., Any], ids: Callable[[str], str]
) -> None:
    capture = ids("pytorch_input_slow")
    frame = opened("report", capture, finding="input-stall")
    open_part(frame.locator("#finding-input-stall"), "Note")
    form = frame.locator("#finding-input-stall .remark-form")
    form.get_by_role("checkbox", name="Won’t fix").check()
    form.get_by_role("textbox", name="Note").fill(SENTENCE)
    form.get_by_role("button", name="Save").click()
    row = frame.locator(".finding-head", has_text=SENTENCE).first
    row.wait_for()
    frame.get_by_role("heading", level=1, name=re.compile("1 set aside$")).wait_for()
    frame.locator("summary", has_text="1 set aside").wait_for()
    assert violations(frame) == []
    again = opened("report", capture, finding="input-stall", width=400)
    assert "won’t fix" in text_of(again.locator(".remark").first)
    open_part(again.locator("#finding-input-stall"), "Note")
    form = again.locator("#finding-input-stall .remark-form")
    assert form.get_by_role("textbox", name="Note").input_value() == SENTENCE
    assert violations(again) == []
    again.get_by_role("link", name="Runs", exact=True).click()
    runs = again.get_by_role("row").filter(has_text="pytorch_input_slow")
    runs.get_by_text("1 set aside").wait_for()
    again = opened("report", capture, finding="input-stall", width=400)
    open_part(again.locator("#finding-input-stall"), "Note")
    form = again.locator("#finding-input-stall .remark-form")
    # An empty note takes it back.
    form.get_by_role("checkbox", name="Won’t fix").uncheck()
    form.get_by_role("textbox", name="Note").fill("")
    form.get_by_role("button", name="Save").click()
    again.locator(".remark").first.wait_for(state="detached")
