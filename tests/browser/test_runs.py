"""The table of all runs, the first page of a log folder with several."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import (
    ROOT,
    Visitor,
    capture_of,
    captures_at,
    change_of,
    eventually,
    report_at,
    text_of,
)

RUNS = 40
UNASKED = 12
BAD = "zz_broken"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Forty copies of two small recordings: the last one is the newest."""
    directory = tmp_path / "logs"
    for number in range(RUNS):
        name = "synthetic_tpu_padded" + ("_fixed" if number % 2 else "")
        run = directory / f"run{number:02d}"
        shutil.copytree(ROOT / "demo_logs" / name, run)
        (session,) = (run / "plugins" / "profile").iterdir()
        session.rename(session.with_name(f"2026_01_01_00_{number:02d}_00"))
    return directory


def column(tab: Any, name: str) -> list[str]:
    headers = [text_of(head) for head in tab.get_by_role("columnheader").all()]
    cells = tab.locator(f"tbody td:nth-child({headers.index(name) + 1})")
    return [text.replace("\xa0", " ") for text in cells.all_inner_texts()]


def test_the_table_stays_where_it_is(
    board: Callable[..., str], visitor: Visitor, tmp_path: Path
) -> None:
    for name in ("synthetic_tpu_padded", "synthetic_tpu_padded_fixed"):
        shutil.copytree(ROOT / "demo_logs" / name, tmp_path / "logs" / name)
    server = board("--logdir", str(tmp_path / "logs"))
    first, _ = captures_at(server)
    report_at(server, first["id"])
    page, tab = visitor.page, visitor.tab()
    page.set_viewport_size({"width": 360, "height": 1000})
    lasts = True

    def answer(route: Any) -> None:
        response = route.fetch()
        row = response.json()
        route.fulfill(response=response, json={**row, "status": "running"} if lasts else row)

    page.route("**/row*", answer)
    page.goto(f"{server}/#perf_advisor&p.perf_advisor.view=runs")
    stop = tab.get_by_role("button", name="Stop")
    stop.wait_for()
    table = tab.get_by_role("group", name="Runs")
    top = table.bounding_box()["y"]
    stop.click()
    tab.get_by_role("button", name="Analyze the other 1").wait_for()
    assert table.bounding_box()["y"] == top
    lasts = False
    tab.get_by_text("2 captures analyzed", exact=True).wait_for()
    assert table.bounding_box()["y"] == top


@pytest.mark.nightly
def test_rows_fill_in_without_analyzing_everything(
    board: Callable[..., str], visitor: Visitor, logs: Path
) -> None:
    server = board("--logdir", str(logs))
    page, tab = visitor.page, visitor.tab()
    page.goto(f"{server}/#perf_advisor")
    tab.get_by_role("heading", level=1, name=f"{RUNS} runs").wait_for()
    # The newest comes first, and of the others those that are on the screen are there.
    assert column(tab, "Run")[0] == "run39"
    done = tab.get_by_text(f"{UNASKED} of {RUNS} captures analyzed")
    done.wait_for()
    # Nothing else starts without being asked for.
    page.wait_for_timeout(2_000)
    statuses = [capture["status"] for capture in captures_at(server)]
    assert statuses == ["new"] * (RUNS - UNASKED) + ["done"] * UNASKED
    tab.get_by_role("button", name="Analyze the other 28").wait_for()

    # A row shows what its report says, and a click on Analyze fills in another one.
    report = report_at(server, capture_of(server, "run38")["id"])
    assert column(tab, "First change")[1] == report["findings"][report["first"]["index"]]["title"]
    assert column(tab, "Device")[0] == "TPU v6 Lite"
    tab.get_by_role("button", name="Analyze", exact=True).first.click()
    eventually(page, lambda: column(tab, "Device")[UNASKED] == "TPU v6 Lite")

    # What the user scrolls to is analyzed next.
    tab.locator("html").evaluate("html => html.ownerDocument.defaultView.scrollTo(0, 1e6)")
    eventually(page, lambda: capture_of(server, "run12")["status"] == "done", within_s=90)
    assert capture_of(server, "run25")["status"] == "new"
    tab.get_by_role("button", name="Stop").click()

    # Sorting and searching cover all rows. Rows without a value come last.
    tab.get_by_role("button", name="Saves").click()
    shares = [float(text.split()[0]) for text in column(tab, "Saves") if text != "–"]
    assert len(shares) >= 6
    assert shares == sorted(shares, reverse=True)
    tab.get_by_role("searchbox", name="Find a run").fill("run07")
    assert tab.locator("tbody tr").count() == 1


def test_rows_are_links_and_back_returns_to_the_table(
    visitor: Visitor, address: str, captures: list[dict[str, Any]]
) -> None:
    capture = next(item for item in captures if item["run"] == "pytorch_input_slow")
    report = report_at(address, capture["id"])
    page, tab = visitor.page, visitor.tab()
    visitor.open(f"{address}/#perf_advisor")
    row = tab.get_by_role("link", name="pytorch_input_slow", exact=True)
    row.wait_for()
    assert row.get_attribute("href") == (
        f"{address}/#perf_advisor&p.perf_advisor.capture={capture['id']}"
    )
    # A click with Control opens the report in a new tab and leaves this one alone.
    with visitor.context.expect_page() as opening:
        row.click(modifiers=["ControlOrMeta"])
    other = opening.value
    inner = other.frame_locator("iframe[src*='perf_advisor']")
    inner.get_by_role("heading", level=1, name=report["headline"]).wait_for()
    other.close()
    tab.get_by_role("heading", level=1, name=re.compile(r"^\d+ runs")).wait_for()

    # A plain click opens it here, and Back returns.
    row.click()
    tab.get_by_role("heading", level=1, name=report["headline"]).wait_for()
    page.go_back()
    tab.get_by_role("heading", level=1, name=re.compile(r"^\d+ runs")).wait_for()

    # The first change opens the report at that finding.
    first = report["findings"][report["first"]["index"]]
    tab.get_by_role("row").filter(has_text="pytorch_input_slow").get_by_role(
        "link", name=first["title"]
    ).click()
    opener = tab.get_by_role("button", name=re.compile(re.escape(change_of(first)))).first
    opener.wait_for()
    eventually(page, lambda: opener.get_attribute("aria-expanded") == "true")


def test_failed_analysis_says_why_in_its_row(
    board: Callable[..., str], visitor: Visitor, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(ROOT / "demo_logs" / "synthetic_tpu_padded", logs / "good")
    (source,) = (ROOT / "demo_logs" / "pytorch_input_slow").glob("*.gz")
    (logs / BAD).mkdir()
    whole = source.read_bytes()
    (logs / BAD / source.name).write_bytes(whole[:200] + b"\0" * (len(whole) - 200))
    server = board("--logdir", str(logs))
    assert len(captures_at(server)) == 2  # the file is damaged behind what is sniffed
    page, tab = visitor.page, visitor.tab()
    page.goto(f"{server}/#perf_advisor")
    row = tab.get_by_role("row").filter(has_text=BAD)
    row.get_by_text("Failed:").wait_for()


def test_only_capture_needs_no_table(
    board: Callable[..., str], visitor: Visitor, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(ROOT / "demo_logs" / "synthetic_tpu_padded", logs / "run")
    server = board("--logdir", str(logs))
    (capture,) = captures_at(server)
    headline = report_at(server, capture["id"])["headline"]
    page, tab = visitor.page, visitor.tab()
    page.goto(f"{server}/#perf_advisor")
    tab.get_by_role("heading", level=1, name=headline).wait_for()
    pages = tab.get_by_role("navigation", name="Log folder").get_by_role("link")
    assert pages.all_inner_texts() == ["Runs"]
