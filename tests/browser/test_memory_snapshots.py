"""The pages of memory snapshots, alone and beside a profile."""

from __future__ import annotations

import re
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
    text_of,
    violations,
)
from tests.support.memory_snapshots import Snapshot, frames, training_snapshot
from tests.support.writers import write_kineto

MIB, GIB = 1 << 20, 1 << 30
BATCH = frames(("/p/model.py", 3, "forward"), ("/p/train.py", 30, "main"))
KEPT = frames(("/p/train.py", 12, "log"), ("/p/train.py", 31, "main"))


def leaking(kept_mib: int) -> bytes:
    """Each of ten steps needs 1 GiB for a while, and keeps some. Then a large request fails."""
    made = Snapshot()
    segment = made.segment(4 * GIB)
    for step in range(10):
        made.annotate(f"ProfilerStep#{step}")
        made.wait(500).allocate(segment, GIB, BATCH)
        at = segment + GIB + step * kept_mib * MIB
        made.allocate(at, kept_mib * MIB, KEPT).holds(segment, at, kept_mib * MIB, KEPT)
        made.wait(500).free(segment, GIB)
    return made.fail(8 * GIB, GIB, BATCH).pickled()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    logs = tmp_path_factory.mktemp("logs")
    for run, data in {"before": leaking(32), "after": leaking(64), "both": leaking(32)}.items():
        (logs / run).mkdir()
        (logs / run / "memory.pickle").write_bytes(data)
    for run in ("training", "trained again"):
        (logs / run).mkdir()
        (logs / run / "memory.pickle").write_bytes(training_snapshot())
    trace = draw("cell 1ms\nstep |...|...|...|\nmain |oo.|oo.|oo.|\ngpu 7 |.KK|.KK|.KK|")
    (logs / "both" / "rank0.pt.trace.json").write_bytes(write_kineto(trace))
    with serving("--logdir", str(logs), cache=tmp_path_factory.mktemp("cache")) as address:
        yield address


def opened(
    visitor: Visitor, server: str, run: str, view: str, *, dark: bool = False, **rest: str
) -> Any:
    capture = capture_of(server, run)["id"]
    report_at(server, capture)
    frame = visitor.open(f"{server}/{link(capture, view=view, **rest)}", dark=dark)
    frame.get_by_role("heading", level=1).first.wait_for()
    return frame


def check_page(frame: Any) -> None:
    html = frame.locator("html")
    html.evaluate("html => new Promise(done => setTimeout(done, 300))")
    assert violations(frame) == []
    for width in (360, 1920):
        html.page.set_viewport_size({"width": width, "height": 1000})
        html.evaluate("html => new Promise(done => setTimeout(done, 150))")
        assert html.evaluate("html => html.scrollWidth - html.clientWidth") <= 0, width


@pytest.mark.parametrize(
    "dark", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["light", "dark"]
)
def test_memory_shows_who_holds_it_and_what_failed(
    visitor: Visitor, server: str, dark: bool
) -> None:
    frame = opened(visitor, server, "before", "memory", dark=dark)
    # At the last step: 1 GiB and ten times 32 MiB.
    frame.get_by_role(
        "heading", level=1, name=re.compile("^Out of memory: 8.00.GiB could not be allocated")
    ).wait_for()
    holder = frame.get_by_role("row").filter(has_text="p/model.py:3 forward").first
    assert "1.00 GiB" in text_of(holder)
    holder.get_by_text("Call stack").click()
    holder.get_by_text("p/train.py:30 main").wait_for()
    assert "8.00 GiB could not be allocated at p/model.py:3 forward." in text_of(
        frame.get_by_role("region", name="What failed").first
    )
    assert "Of 10 steps (ProfilerStep), the last one begins with 288 MiB more" in text_of(
        frame.get_by_role("region", name="What grew").first
    )
    check_page(frame)


def test_the_report_begins_with_what_failed(visitor: Visitor, server: str) -> None:
    frame = opened(visitor, server, "before", "report")
    heading = "Make the failed allocation fit: 8.00 GiB did not fit"
    frame.get_by_role("heading", level=1, name=heading).wait_for()
    frame.get_by_text(
        "Stop keeping memory from step to step: 32.0 MiB more in each"
    ).first.wait_for()
    check_page(frame)
    frame.get_by_role("link", name="Memory over the history, and who holds the peak").click()
    frame.get_by_role("heading", level=1, name="Out of memory").wait_for()


def test_a_snapshot_beside_a_profile_is_part_of_its_report(visitor: Visitor, server: str) -> None:
    frame = opened(visitor, server, "both", "memory")
    frame.get_by_role("heading", level=1, name=re.compile("^Out of memory: 8.00.GiB")).wait_for()
    frame.get_by_role("link", name="Report", exact=True).click()
    frame.get_by_role("heading", name="Where a").wait_for()


def test_two_snapshots_are_compared_by_line(visitor: Visitor, server: str) -> None:
    other = capture_of(server, "after")["id"]
    report_at(server, other)
    base = capture_of(server, "before")["id"]
    frame = opened(visitor, server, "before", "compare", base=base, target=other)
    # 1,344 MiB before, and ten times 32 more: 23.8 %.
    frame.get_by_role(
        "heading", level=2, name=re.compile(r"instead of 1\.31 GiB .23\.8")
    ).wait_for()
    row = frame.get_by_role("row").filter(has_text="p/train.py:12 log")
    assert "+320 MiB" in text_of(row)
    check_page(frame)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_what_the_memory_of_a_training_is_for(visitor: Visitor, server: str, dark: bool) -> None:
    other = capture_of(server, "trained again")["id"]
    report_at(server, other)
    rest = {"snapshot.other": other, "snapshot.trained-again.steps": "1"}
    frame = opened(visitor, server, "training", "memory", dark=dark, **rest)
    for name in ("training", "trained again"):
        frame.get_by_role("heading", level=3, name=name, exact=True).wait_for()
    # At the peak: 16 MiB from before the history, of which as much as the gradient of 4 are
    # parameters, an activation of 8, the gradient, and state of 8.
    held = frame.get_by_role("group", name="What the peak holds").get_by_role("row")
    shown = {text_of(row).split("\t")[0].strip(): text_of(row) for row in held.all()[1:]}
    assert "12.0 MiB" in shown["other memory from before the recording"]
    for category, size in (("activations", 8), ("optimizer state", 8), ("gradients", 4)):
        assert f"{size}.00 MiB" in shown[category]
    assert "4.00 MiB" in shown["parameters"]
    steps = frame.get_by_role("group", name="trained again Memory at the end of each step")
    assert steps.get_by_role("row").count() == 1 + 3
    check_page(frame)
