"""The page of a whole run: its profiles, its pauses, its price; and the line in a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tensorboard.compat.proto import summary_pb2

from tb_perfadvisor.testing import TraceBuilder, ms
from tb_perfadvisor.trace import EventKind
from tests.support.browser import Visitor, capture_of, link, report_at, serving, text_of, violations
from tests.support.event_files import event, framed
from tests.support.writers import write_kineto

START = 1_700_000_000
NAME = "w0.1700000001000000000.pt.trace.json"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """400 steps of 16 ms with a pause of 2 s after step 200, profiled at step 62 for 20 ms each."""
    logs = tmp_path_factory.mktemp("logs")
    run = logs / "resnet"
    run.mkdir()
    builder = TraceBuilder(rank=0, world_size=1, host="host", origin_unix_ns=(START + 1) * 10**9)
    builder.device("NVIDIA H100", memory_bytes=1 << 34)
    for number in range(4):
        begin = number * ms(20)
        builder.step(number, begin, begin + ms(20))
        builder.host(EventKind.INPUT_WAIT, "next", begin, begin + ms(8))
        builder.operator("aten::mm", begin + ms(8), begin + ms(9), key=f"{number}")
        builder.kernel("gemm", begin + ms(9), begin + ms(20), launched_by=f"{number}")
    (run / NAME).write_bytes(write_kineto(builder.build()))
    records = []
    for step in range(0, 400, 5):
        value = summary_pb2.Summary.Value(tag="train/loss", simple_value=1 / (step + 1))
        seconds = START + step * 0.016 + (2 if step > 200 else 0)
        records.append(event(step, seconds, value))
    (run / "events.out.tfevents.1.host").write_bytes(framed(*records))
    with serving("--logdir", str(logs), cache=tmp_path_factory.mktemp("cache")) as address:
        yield address


@pytest.fixture
def shown(server: str, visitor: Visitor) -> Callable[..., Any]:
    """Opens a page of the only capture."""
    capture = capture_of(server, "resnet")["id"]
    report_at(server, capture)

    def show(view: str = "time", dark: bool = False) -> Any:
        return visitor.open(f"{server}/{link(capture, view=view)}", dark=dark)

    return show


def test_run_shows_its_profile_and_its_pause(shown: Callable[..., Any]) -> None:
    tab = shown()
    # 2 s of the 8.32 s that 395 steps of 16 ms take with it.
    story = "A pause without a logged reason: 24.0 % of the run"
    tab.get_by_role("heading", name=story).wait_for()
    text = text_of(tab.locator("body"))
    assert "16.0 ms per step without the profiler." in text
    # 20 ms with the profiler, 16 ms without.
    assert "Its median step takes 20.0 ms instead of 16.0 ms: 25.0 % slower while recorded." in text
    row = tab.get_by_role("row").filter(has_text="Pause")
    assert "2.00 s" in text_of(row)
    tab.get_by_role("img", name="Time per step over the run").wait_for()
    tab.get_by_role("img", name="Loss over the run").wait_for()
    # From the profile to its report, and back.
    tab.locator(".run-profiles").get_by_role("link").click()
    tab.locator(".whole-run").get_by_text("16.0 ms per step without the profiler").wait_for()
    tab.get_by_role("link", name="Its steps over time").click()
    tab.get_by_role("heading", level=2, name="Profiles of this run").wait_for()


def test_price_is_kept(shown: Callable[..., Any], visitor: Visitor) -> None:
    tab = shown()
    tab.get_by_label("Price per device and hour").fill("2.5")
    tab.get_by_label("Price per device and hour").press("Enter")
    # One device for 24 hours.
    tab.get_by_text("1 device at $2.50 an hour: about $60.00 a day").wait_for()
    tab.get_by_label("Last step of the run").fill("1395")
    tab.get_by_label("Last step of the run").press("Enter")
    tab.get_by_text("over the 1,000 steps left").wait_for()
    tab = shown()
    tab.get_by_text("about $60.00 a day").wait_for()


def test_page_fits_and_is_accessible(shown: Callable[..., Any], visitor: Visitor) -> None:
    for dark in (False, True):
        tab = shown(dark=dark)
        for width in (360, 1024, 1920):
            visitor.page.set_viewport_size({"width": width, "height": 900})
            tab.get_by_role("img", name="Loss over the run").wait_for()
            html = tab.locator("html")
            assert html.evaluate("e => e.scrollWidth <= e.clientWidth"), width
            assert violations(tab) == [], (dark, width)
