"""The page of a run's recordings over time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tb_perfadvisor.testing import TraceBuilder, ms
from tb_perfadvisor.trace import EventKind
from tests.support.browser import (
    Visitor,
    captures_at,
    link,
    report_at,
    serving,
    text_of,
    violations,
)
from tests.support.writers import write_kineto

START = 1_700_000_000
RUN = "<img src=x onerror=\"top.hacked='run'\">"


def profile(at_s: int, input_ms: float) -> bytes:
    """Four steps of 12 ms and what they wait for input."""
    step_ms = 12 + input_ms
    builder = TraceBuilder(rank=0, world_size=1, host="host", origin_unix_ns=at_s * 10**9)
    builder.device("NVIDIA H100", memory_bytes=1 << 34)
    for number in range(4):
        begin = ms(number * step_ms)
        work = begin + ms(input_ms)
        builder.step(number, begin, begin + ms(step_ms))
        builder.host(EventKind.INPUT_WAIT, "next", begin, work)
        builder.operator("aten::mm", work, work + ms(1), key=f"{number}")
        builder.kernel("gemm", work + ms(1), work + ms(12), launched_by=f"{number}")
    return write_kineto(builder.build())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A run that waits for input, hardly waits, and waits again, in a directory per step."""
    logs = tmp_path_factory.mktemp("logs")
    for number, input_ms in enumerate((8, 0.1, 8)):
        at_s = START + 3_600 * number
        directory = logs / RUN / f"step_{1000 * (number + 1):08}"
        directory.mkdir(parents=True)
        (directory / f"w0.{at_s}000000000.pt.trace.json").write_bytes(profile(at_s, input_ms))
    with serving("--logdir", str(logs), cache=tmp_path_factory.mktemp("cache")) as address:
        yield address


@pytest.fixture
def shown(server: str, visitor: Visitor) -> Callable[..., Any]:
    """Opens the page of the run; at first, only its first recording is analyzed."""
    captures = sorted(captures_at(server), key=lambda capture: str(capture["run"]))
    report_at(server, captures[0]["id"])

    def show(dark: bool = False) -> Any:
        tab = visitor.open(f"{server}/{link(captures[0]['id'], view='time')}", dark=dark)
        # The page has the other two analyzed.
        tab.get_by_text("latest vs. first of 3 recordings").wait_for()
        return tab

    return show


def test_findings_come_and_go(shown: Callable[..., Any], visitor: Visitor) -> None:
    tab = shown()
    tab.get_by_role("img", name="Step times of 3 recordings").wait_for()
    finding = tab.get_by_role("row").filter(has_text="gone with no. 2")
    text = text_of(finding)
    # 7.9 of 8 ms of waiting are gone in the second recording, and back in the third.
    assert "There from the start, gone with no. 2: predicted" in text
    assert "achieved 7.90 ms less" in text
    assert "Came with no. 3, still there" in text
    rows = tab.get_by_role("group", name="Recordings").get_by_role("row")
    cells = [text_of(row) for row in rows.all()]
    assert "1,000" in cells[1]
    assert "Faster" in cells[2]
    assert "12.1 ms" in cells[2]
    assert "Slower" in cells[3]
    assert RUN in text_of(tab.locator(".headline").last)
    assert visitor.page.evaluate("window.hacked") is None


def test_a_bar_opens_its_report_and_a_pair_is_compared(shown: Callable[..., Any]) -> None:
    tab = shown()
    tab.locator("svg [data-part=bar] rect").last.click()
    tab.get_by_role("navigation").get_by_role("link", name="Report", exact=True).and_(
        tab.locator("[aria-current]")
    ).wait_for()
    assert "step_00003000" in tab.get_by_role("combobox", name="Capture").input_value()
    tab.get_by_role("link", name="Over time", exact=True).click()
    tab.get_by_role("link", name="with no. 1").click()
    tab.get_by_role("heading", name="1.65 times as fast").wait_for()


def test_page_fits_and_is_accessible(shown: Callable[..., Any], visitor: Visitor) -> None:
    for dark in (False, True):
        tab = shown(dark=dark)
        for width in (360, 700, 1920):
            visitor.page.set_viewport_size({"width": width, "height": 900})
            tab.get_by_role("img", name="Step times of 3 recordings").wait_for()
            html = tab.locator("html")
            assert html.evaluate("e => e.scrollWidth <= e.clientWidth"), width
            assert violations(tab) == [], (dark, width)
