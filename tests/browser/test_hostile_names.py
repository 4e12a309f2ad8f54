"""Names in profiles are untrusted: in the tab they are only ever text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tb_perfadvisor.testing import TraceBuilder, ms
from tb_perfadvisor.testing.writers import write_kineto
from tb_perfadvisor.trace import EventKind
from tests.support.browser import Visitor, capture_of, link, read, report_at, text_of

pytestmark = pytest.mark.browser

MARK = "<img src=x onerror=\"top.hacked='{place}'\">"
LINK = "[a](javascript:top.hacked=1)<a href='javascript:top.hacked=1'>b</a>{{{{7*7}}}}"
# A folder name cannot contain a slash.
RUN = MARK.format(place="run")
VIEWS = ("report", "steps", "compare", "ranks", "input", "kernels", "memory", "rules", "files")


def hostile(place: str) -> str:
    return MARK.format(place=place) + LINK


LOADER = f"enumerate(DataLoader)#{hostile('loader')}.__next__"


def trace(rank: int) -> bytes:
    """A run that waits for input and for a kernel with malicious names."""
    builder = TraceBuilder(rank=rank, world_size=2, host=hostile("host"))
    builder.device(hostile("device"), memory_bytes=1 << 34)
    for number in range(3):
        begin = number * ms(20)
        builder.step(number, begin, begin + ms(20))
        builder.host(EventKind.INPUT_WAIT, LOADER, begin, begin + ms(8))
        builder.operator(hostile("operator"), begin + ms(8), begin + ms(9), key=f"{number}")
        builder.kernel(hostile("kernel"), begin + ms(9), begin + ms(18), launched_by=f"{number}")
        builder.memory(begin + ms(8), 1 << 30, allocated_bytes=1 << 30, reserved_bytes=1 << 31)
    return write_kineto(builder.build())


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    run = tmp_path / "logs" / RUN
    run.mkdir(parents=True)
    for rank in range(2):
        name = f"{MARK.format(place='file')}{rank}.1795234073764326979.pt.trace.json"
        (run / name).write_bytes(trace(rank))
    broken = MARK.format(place="broken") + ".pt.trace.json"
    (tmp_path / "logs" / broken).write_bytes(b"\x00 no JSON")
    return tmp_path / "logs"


def test_names_never_become_elements(
    board: Callable[..., str], visitor: Visitor, logs: Path
) -> None:
    server = board("--logdir", str(logs))
    capture, page, tab = capture_of(server, RUN)["id"], visitor.page, visitor.tab()
    report = report_at(server, capture)
    assert "input-stall" in {finding["rule_id"] for finding in report["findings"]}
    assert any(
        MARK.format(place="broken") in file["path"] for file in read(server, "captures")["rejected"]
    )
    shown: dict[str, str] = {}
    page.goto(f"{server}/{link(capture)}")
    navigation = tab.get_by_role("navigation", name="Pages")
    for view in VIEWS:
        navigation.get_by_role("link", name=view.title()).click(timeout=40_000)
        tab.get_by_role("heading", level=1).wait_for(timeout=40_000)
        if view == "report":
            for finding in report["findings"]:
                title = re.compile(re.escape(finding["title"]))
                tab.get_by_role("button", name=title, expanded=False).first.click()
            tab.locator(".timeline svg").first.wait_for(timeout=20_000)
        page.wait_for_timeout(300)  # let fetched content appear
        shown[view] = text_of(tab.locator("body"))
        assert tab.locator("img, a[href^='javascript:']").count() == 0, view
        assert page.evaluate("top.hacked") is None, view
    # The names are shown exactly.
    assert hostile("kernel") in shown["kernels"]
    assert hostile("loader") in shown["report"]
    assert hostile("device") in shown["kernels"]
    assert MARK.format(place="broken") in shown["files"]
    assert RUN in shown["files"]
