"""The timeline: from a report to the call that costs the time, by mouse, keys and table."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import (
    Visitor,
    capture_of,
    eventually,
    link,
    read,
    report_at,
    serving,
    text_of,
    violations,
)
from tests.support.kineto_files import event, to_bytes

Served = tuple[str, str]
SLOW = "dataset.py(9): __getitem__"
RECORDED = "local-torch2.13-cpu/conv_dl0_slow_rich"
# As in frontend/src/timeline/layout.ts and drawing.ts.
HEAD_PX, NAME_PX, LANE_PX = 56, 18, 17


def slow_items() -> bytes:
    """Three steps of 100 ms: four items of 20 ms each, ten calls deep, then an operator."""
    frames = ("train.py(40): <module>", "train.py(30): train", "loader.py(7): __next__")
    inner = ("loader.py(78): _next_data", "fetch.py(49): fetch", "fetch.py(54): <listcomp>")
    events = [event(name, 0, 300_000, "python_function") for name in frames[:2]]
    for step in range(3):
        at = step * 100_000
        events += [
            event(f"ProfilerStep#{step}", at, 100_000, "user_annotation"),
            event(frames[2], at, 81_000, "python_function"),
            event(
                "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                *(at, 81_000, "user_annotation"),
            ),
            *(event(name, at, 81_000, "python_function") for name in inner),
        ]
        for item in range(4):
            start = at + item * 20_000
            events.append(event(SLOW, start, 20_000, "python_function"))
            events.append(event("time.sleep", start + 500, 2_000, "python_function"))
        events.append(event("aten::mm", at + 85_000, 12_000))
    return to_bytes(events)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A TensorBoard on that recording, and the capture."""
    logs = tmp_path_factory.mktemp("items")
    (logs / "run").mkdir()
    (logs / "run" / "worker0.1.pt.trace.json").write_bytes(slow_items())
    with serving("--logdir", str(logs), cache=tmp_path_factory.mktemp("cache")) as address:
        capture = capture_of(address, "run")["id"]
        report_at(address, capture)
        yield address, capture


@pytest.fixture
def shown(visitor: Visitor, served: Served) -> Callable[..., Any]:
    """Opens a page of it, and gives the tab."""

    def go(*, width: int = 1280, dark: bool = False, **values: str) -> Any:
        address, capture = served
        visitor.page.set_viewport_size({"width": width, "height": 1000})
        tab = visitor.open(f"{address}/{link(capture, **values)}", dark=dark)
        tab.locator("canvas[data-drawn]").first.wait_for()
        return tab

    return go


def chosen(tab: Any) -> str:
    text: str = tab.locator(".timeline-chosen").first.inner_text()
    return text.replace("\u200b", "")


def test_two_clicks_from_the_report_to_the_slow_call(shown: Callable[..., Any]) -> None:
    tab = shown()
    tab.get_by_role("button", name="As a table").click()
    rows = tab.get_by_role("group", name="Events in view").get_by_role("row")
    # Most of the step's own time is in it.
    assert "__getitem__" in rows.nth(1).inner_text()
    rows.nth(1).get_by_role("button").click()
    assert "__getitem__" in chosen(tab)
    assert "20.0 ms" in chosen(tab).replace("\xa0", " ")
    assert "Waiting for input" in chosen(tab)


@pytest.mark.corpus
def test_two_clicks_in_a_recording(visitor: Visitor, corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus / RECORDED, tmp_path / "logs" / "run")
    with serving("--logdir", str(tmp_path / "logs"), cache=tmp_path / "cache") as address:
        capture = capture_of(address, "run")["id"]
        report_at(address, capture)
        tab = visitor.open(f"{address}/{link(capture)}")
        tab.get_by_role("button", name="As a table").click()
        rows = tab.get_by_role("group", name="Events in view").get_by_role("row")
        rows.filter(has_text="__getitem__").first.get_by_role("button").click()
        assert "gen_torch.py(9): __getitem__" in chosen(tab)
        assert "gen_torch.py:9 __getitem__" in chosen(tab)


def test_one_click_on_the_picture(shown: Callable[..., Any], served: Served) -> None:
    tab = shown()
    canvas = tab.locator("canvas[data-drawn]").first
    canvas.scroll_into_view_if_needed()
    from_ns, to_ns = map(int, canvas.get_attribute("data-drawn").split("-"))
    address, capture = served
    window = read(address, f"captures/{capture}/window")
    boxes, slow = window["boxes"], window["texts"].index(SLOW)
    # The second one: the first begins where the step does.
    place = [at for at, name in enumerate(boxes["name"]) if name == slow][1]
    middle_ns = window["from_ns"] + boxes["start_ns"][place] + boxes["duration_ns"][place] / 2
    box = canvas.bounding_box()
    x = box["x"] + box["width"] * (middle_ns - from_ns) / (to_ns - from_ns)
    y = box["y"] + HEAD_PX + NAME_PX + LANE_PX * (boxes["row"][place] + 0.5)
    mouse = canvas.page.mouse
    mouse.move(x, y)
    tip = tab.locator(".timeline-tip")
    tip.wait_for()
    # Event, source line, cause and finding together.
    for part in (SLOW, "dataset.py:9 __getitem__", "Waiting for input", "Finding"):
        assert part in tip.inner_text()
    mouse.down()
    mouse.up()
    assert "__getitem__" in chosen(tab)


def drawn(canvas: Any) -> tuple[int, int]:
    first, last = map(int, canvas.get_attribute("data-drawn").split("-"))
    return first, last


def redrawn(canvas: Any, before: tuple[int, int]) -> tuple[int, int]:
    """What is drawn once it is something else, and stays."""
    eventually(canvas.page, lambda: drawn(canvas) != before)
    now = (0, 0)
    while now != (now := drawn(canvas)):
        canvas.page.wait_for_timeout(500)
    return now


def test_keys_move_zoom_and_choose(shown: Callable[..., Any]) -> None:
    tab = shown(view="timeline")
    plane = tab.get_by_role("application").first
    canvas = tab.locator("canvas[data-drawn]").first
    whole = begin, end = drawn(canvas)
    plane.press("w")
    near = redrawn(canvas, whole)
    assert near[1] - near[0] == pytest.approx((end - begin) / 1.6, rel=0.01)
    plane.press("d")
    later = redrawn(canvas, near)
    assert later[0] > near[0]
    plane.press("a")
    assert redrawn(canvas, later)[0] == pytest.approx(near[0], abs=2)
    plane.press("Home")
    eventually(plane.page, lambda: drawn(canvas) == whole)
    # Right after a move that the address does not have yet.
    plane.press("d")
    plane.press("Home")
    plane.page.wait_for_timeout(500)
    eventually(plane.page, lambda: drawn(canvas) == whole)
    plane.press("ArrowDown")
    assert "<module>" in chosen(tab)
    plane.press("ArrowDown")
    assert "train.py(30): train" in chosen(tab)
    plane.press("Escape")
    assert chosen(tab) == ""
    plane.press("/")
    tab.get_by_role("searchbox", name="Find events by name").press_sequentially("GETITEM")
    tab.get_by_text(re.compile("^12 events, ")).wait_for()
    tab.get_by_role("button", name="Next match").click()
    assert "__getitem__" in chosen(tab)
    # The zoom stays, and the list has the sums.
    tab.get_by_role("button", name="List").click()
    found = tab.get_by_role("group", name="Events found").get_by_role("row")
    assert found.count() == 1 + 12
    first, last = drawn(canvas)
    assert last - first == pytest.approx(end - begin, rel=0.001)


def test_a_range_is_summed_up_and_its_address_shows_the_same(
    shown: Callable[..., Any], served: Served, visitor: Visitor
) -> None:
    tab = shown(view="timeline")
    canvas = tab.locator("canvas[data-drawn]").first
    canvas.scroll_into_view_if_needed()
    box, mouse = canvas.bounding_box(), canvas.page.mouse
    begin, end = drawn(canvas)
    mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 30)
    mouse.down()
    mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 30, steps=4)
    mouse.up()
    sums = tab.get_by_role("region", name="Time in the selected range")
    causes = sums.get_by_role("group", name="Causes in the range").get_by_role("row")
    causes.filter(has_text="Waiting for input").wait_for()
    # The zoom stays.
    assert drawn(canvas) == (begin, end)
    sums.get_by_label("Compare with the same part of").select_option("step-2")
    sums.get_by_role("columnheader", name="Difference").wait_for()
    expected = text_of(sums)
    page = canvas.page
    eventually(page, lambda: "range" in page.url and "beside" in page.url)
    ((first, last),) = (map(int, ends) for ends in re.findall(r"range=(\d+)-(\d+)", page.url))
    assert last - first == pytest.approx(0.3 * (end - begin), rel=0.02)
    again = visitor.open(page.url)
    again.get_by_role("columnheader", name="Difference").wait_for()
    assert text_of(again.get_by_role("region", name="Time in the selected range")) == expected
    assert drawn(again.locator("canvas[data-drawn]").first) == (begin, end)
    assert violations(again) == []
    again.get_by_role("application").press("Escape")
    again.get_by_role("region", name="Time in the selected range").wait_for(state="detached")


def test_the_summary_is_copied(shown: Callable[..., Any]) -> None:
    tab = shown()
    tab.get_by_text("Share", exact=True).click()
    tab.get_by_role("button", name="Copy summary").click()
    tab.get_by_role("button", name="Copied").wait_for()
    assert violations(tab) == []


def test_the_wheel_and_dragging_move_it(shown: Callable[..., Any]) -> None:
    tab = shown(view="timeline")
    canvas = tab.locator("canvas[data-drawn]").first
    canvas.scroll_into_view_if_needed()
    box, page = canvas.bounding_box(), canvas.page
    whole = begin, end = drawn(canvas)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 100)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    near = redrawn(canvas, whole)
    # 1.0025 to the power of 400 is 2.715.
    assert near[1] - near[0] == pytest.approx((end - begin) / 2.715, rel=0.02)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 100, steps=4)
    page.mouse.up()
    moved = redrawn(canvas, near)
    assert moved[0] - near[0] == pytest.approx((near[1] - near[0]) / 4, rel=0.02)


@pytest.mark.parametrize(
    ("width", "dark"), [(1280, False), (1280, True), (400, False)], ids=["light", "dark", "narrow"]
)
def test_it_is_accessible(shown: Callable[..., Any], width: int, dark: bool) -> None:
    for values in (
        {},
        {"view": "timeline", "table": "1", "find": "getitem", "list": "1", "path": "1"},
    ):
        tab = shown(width=width, dark=dark, **values)
        assert violations(tab) == []
        assert tab.locator("html").evaluate("e => e.scrollWidth <= innerWidth")


@pytest.mark.parametrize("look", ["tree", "flames"])
def test_calls_by_keys_search_and_inverted(shown: Callable[..., Any], look: str) -> None:
    tab = shown()
    tab.get_by_role("navigation", name="Pages").get_by_role("link", name="Host").click()
    tab.get_by_role("heading", level=1, name=re.compile("__getitem__ itself takes")).wait_for()
    tree = tab.get_by_role("treegrid")
    tab.get_by_role("button", name="Flame graph" if look == "flames" else "Tree").click()
    if look == "flames":
        flames = tab.get_by_role("application")
        flames.press("ArrowDown")
        flames.press("ArrowDown")
        assert "train.py(30): train" in chosen(tab)
        flames.press("Enter")
        tab.get_by_role("button", name="Zoom out").click()
    else:
        # The heaviest path is open.
        assert "__getitem__" in tree.inner_text()
        tree.get_by_role("row").nth(1).focus()
        tree.press("ArrowDown")
        assert "train.py(30): train" in chosen(tab)
    tab.get_by_role("searchbox", name="Find calls").fill("getitem")
    tab.get_by_text(re.compile("^1 match, ")).wait_for()
    assert violations(tab) == []
    tab.get_by_role("button", name="Inverted").click()
    tab.get_by_role("searchbox", name="Find calls").fill("")
    if look == "tree":
        assert "__getitem__" in tree.get_by_role("row").nth(1).inner_text()
    assert violations(tab) == []
