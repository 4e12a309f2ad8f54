"""The patch of the user's code in the tab, and the command that proves it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.browser import (
    ROOT,
    Visitor,
    capture_of,
    link,
    report_at,
    serving,
    text_of,
    violations,
)

LOADER = "from torch.utils.data import DataLoader\n\nloader = DataLoader(Images(), batch_size=32)\n"


@pytest.mark.parametrize("width", [1280, pytest.param(400, marks=pytest.mark.nightly)])
def test_from_a_finding_to_its_patch(visitor: Visitor, tmp_path: Path, width: int) -> None:
    shutil.copytree(ROOT / "demo_logs/pytorch_input_slow", tmp_path / "logs/slow")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(LOADER, encoding="utf-8")
    arguments = ("--logdir", str(tmp_path / "logs"), "--perfadvisor_repo", str(tmp_path / "code"))
    with serving(*arguments, cache=tmp_path / "cache") as address:
        capture = capture_of(address, "slow")["id"]
        report_at(address, capture)
        visitor.page.set_viewport_size({"width": width, "height": 1000})
        tab = visitor.open(f"{address}/{link(capture, finding='input-stall')}")
        tab.get_by_role("tab", name="Patch").click()
        panel = tab.get_by_role("tabpanel")
        panel.get_by_text("Prove it").wait_for()
        assert "num_workers=4" in text_of(panel.locator(".diff-added"))
        assert "perfadvisor try logs/slow" in text_of(panel)
        (name,) = [
            found.get_attribute("download")
            for found in panel.get_by_role("link", name="Download the patch").all()
        ]
        assert name == "input-stall.patch"
        assert violations(tab) == []
        assert tab.locator("html").evaluate("e => e.scrollWidth <= innerWidth")
