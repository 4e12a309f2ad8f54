"""The page of inference servers, on a drawn one, and its absence for other programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tb_perfadvisor.testing import draw
from tests.support.browser import (
    Visitor,
    capture_of,
    link,
    report_at,
    serving,
    settle,
    text_of,
    violations,
)
from tests.support.server_trace import Served, server_trace
from tests.support.writers import write_kineto

DECODE = Served(decodes=8)
MIXED = Served(decodes=8, prefills=1, prompt_tokens=1000, device_us=20_000, replays=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    logs = tmp_path_factory.mktemp("logs")
    steps = [DECODE, MIXED, *[DECODE] * 4]
    traces = {
        "server": server_trace(steps),
        "model": draw("cell 1ms\nstep |...|...|...|\nmain |oo.|oo.|oo.|\ngpu 7 |.KK|.KK|.KK|"),
    }
    for run, trace in traces.items():
        (logs / run).mkdir()
        (logs / run / "rank0.pt.trace.json").write_bytes(write_kineto(trace))
    with serving("--logdir", str(logs), cache=tmp_path_factory.mktemp("cache")) as address:
        yield address


def opened(visitor: Visitor, server: str, run: str, view: str, *, dark: bool = False) -> Any:
    capture = capture_of(server, run)["id"]
    report_at(server, capture)
    frame = visitor.open(f"{server}/{link(capture, view=view)}", dark=dark)
    frame.get_by_role("heading", level=1).first.wait_for()
    return frame


@pytest.mark.parametrize(
    "dark", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["light", "dark"]
)
def test_the_page_shows_the_steps_and_is_accessible(
    visitor: Visitor, server: str, dark: bool
) -> None:
    frame = opened(visitor, server, "server", "serving", dark=dark)
    # 100 µs to prepare, 5 to launch, 5,000 on the device, 100 of results and scheduling.
    heading = "Decode steps take 5.21 ms for 8 requests"
    frame.get_by_role("heading", level=1, name=heading).wait_for()
    mixed = text_of(frame.get_by_role("row").filter(has_text="mixed")).split()
    # Steps, requests, prompt tokens and decode tokens; the step launches ten kernels, no graph.
    assert mixed[:5] == ["mixed", "1", "9", "1,000", "8"]
    assert (mixed[-4], mixed[-1]) == ("none", "10")
    chart = frame.get_by_role("img", name="Time by step, 5 steps, colored by kind.")
    assert chart.locator("g[data-part='rect'] rect").count() == 5
    phases = text_of(frame.get_by_role("row").filter(has_text="Preparing inputs"))
    assert "100 µs" in phases
    html = frame.locator("html")
    settle(frame)
    assert violations(frame) == []
    assert sum(html.evaluate("shifts")) < 0.05
    for width in (360, 1920):
        html.page.set_viewport_size({"width": width, "height": 1000})
        html.evaluate("html => new Promise(done => setTimeout(done, 150))")
        assert html.evaluate("html => html.scrollWidth - html.clientWidth") <= 0, width


def test_only_servers_have_the_page(visitor: Visitor, server: str) -> None:
    of_server = opened(visitor, server, "server", "report")
    of_server.get_by_role("link", name="Serving").wait_for()
    of_model = opened(visitor, server, "model", "report")
    of_model.get_by_role("link", name="Report", exact=True).wait_for()
    assert of_model.get_by_role("link", name="Serving").count() == 0
