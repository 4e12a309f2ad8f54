"""The tab of a server that others use, too: who cancels, what a tunnel allows, crowded folders."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser.test_living_tab import worker_of
from tests.support.browser import (
    ROOT,
    Visitor,
    capture_of,
    downloaded,
    eventually,
    link,
    open_part,
    report_at,
    text_of,
    violations,
)

pytestmark = pytest.mark.browser

SLOW = "pytorch_input_slow"
needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="there is no /proc")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "demo_logs" / SLOW, tmp_path / "logs" / SLOW)
    return tmp_path / "logs"


@pytest.fixture
def many(tmp_path: Path, logs: Path) -> Iterator[Callable[[], int]]:
    """A capture whose analysis takes a while; gives its process, which then stands still."""
    (trace,) = (logs / SLOW).glob("*.gz")
    (logs / "many").mkdir()
    for rank in range(40):
        shutil.copy(trace, logs / "many" / f"worker{rank}.1795234073764326979.pt.trace.json.gz")
    stopped: list[int] = []

    def stop() -> int:
        process = worker_of(tmp_path / "cache")
        assert process is not None
        os.kill(process, signal.SIGSTOP)
        stopped.append(process)
        return process

    yield stop
    for process in stopped:
        if Path(f"/proc/{process}").exists():
            os.kill(process, signal.SIGCONT)


@needs_proc
def test_one_user_who_cancels_does_not_decide_for_another(
    board: Callable[..., str],
    visitor: Visitor,
    guest: Visitor,
    logs: Path,
    many: Callable[[], int],
) -> None:
    server = board("--logdir", str(logs))
    capture = capture_of(server, "many")["id"]
    for user in (visitor, guest):
        user.page.goto(f"{server}/{link(capture)}")
        user.tab().get_by_role("button", name="Cancel").wait_for()
    process = many()
    visitor.tab().get_by_role("button", name="Cancel").click()
    visitor.tab().get_by_role("heading", name="The analysis goes on for others").wait_for()
    assert violations(visitor.tab()) == []
    os.kill(process, signal.SIGCONT)
    headline = re.compile("of each step")
    guest.tab().get_by_role("heading", level=1, name=headline).wait_for()
    visitor.tab().get_by_role("button", name="Try again").click()
    visitor.tab().get_by_role("heading", level=1, name=headline).wait_for()


@needs_proc
def test_a_reload_does_not_make_another_user(
    board: Callable[..., str], visitor: Visitor, tmp_path: Path, logs: Path, many: Callable[[], int]
) -> None:
    server = board("--logdir", str(logs))
    visitor.page.goto(f"{server}/{link(capture_of(server, 'many')['id'])}")
    visitor.tab().get_by_role("button", name="Cancel").wait_for()
    many()
    visitor.page.reload()
    visitor.tab().get_by_role("button", name="Cancel").click()
    visitor.tab().get_by_role("heading", name="The analysis was canceled").wait_for()
    eventually(visitor.page, lambda: worker_of(tmp_path / "cache") is None)


@needs_proc
def test_a_tab_at_an_unknown_host_is_read_and_says_how_to_write(
    board: Callable[..., str], visitor: Visitor, logs: Path, many: Callable[[], int]
) -> None:
    server = board("--logdir", str(logs))
    report_at(server, capture_of(server, SLOW)["id"])
    elsewhere = server.replace("127.0.0.1", "perf.example")
    capture = capture_of(server, SLOW)["id"]
    tab = visitor.open(f"{elsewhere}/{link(capture, finding='input-stall')}")
    finding = tab.locator("#finding-input-stall")
    hint = "--perfadvisor_write_hosts=perf.example"
    open_part(finding, "Note")
    assert hint in text_of(finding)
    assert finding.locator(".remark-form").count() == 0
    assert violations(tab) == []
    tab.get_by_text("Export", exact=True).click()
    assert downloaded(visitor.page, tab.get_by_role("link", name="Plain text"))
    tab = visitor.open(f"{elsewhere}/{link(capture_of(server, 'many')['id'])}")
    tab.get_by_role("button", name="Cancel").wait_for()
    many()
    tab.get_by_role("button", name="Cancel").click()
    tab.get_by_text(hint).wait_for()
    assert capture_of(server, "many")["status"] == "running"
    visitor.errors.clear()  # the browser logs what was refused


def test_a_host_that_the_flag_names_writes(
    board: Callable[..., str], visitor: Visitor, logs: Path, tmp_path: Path
) -> None:
    server = board(
        *("--logdir", str(logs), "--perfadvisor_write_hosts", "other,perf.example"),
        environment={"PERFADVISOR_DATA_DIR": str(tmp_path / "data")},
    )
    capture = capture_of(server, SLOW)["id"]
    report_at(server, capture)
    place = link(capture, finding="input-stall")
    tab = visitor.open(f"{server.replace('127.0.0.1', 'perf.example')}/{place}")
    open_part(tab.locator("#finding-input-stall"), "Note")
    form = tab.locator("#finding-input-stall .remark-form")
    form.get_by_role("textbox", name="Note").fill("It is meant.")
    form.get_by_role("button", name="Save").click()
    tab.locator(".finding-head", has_text="It is meant.").first.wait_for()


@pytest.mark.parametrize("has_profile", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_unread_files_are_shown_in_parts_and_found(
    board: Callable[..., str], visitor: Visitor, tmp_path: Path, logs: Path, has_profile: bool
) -> None:
    if not has_profile:
        shutil.rmtree(logs / SLOW)
    for number in range(250):
        (logs / f"cut{number:03}.pt.trace.json").write_text('{"a": 1}')
    server = board("--logdir", str(logs), has_captures=has_profile)
    tab = visitor.open(f"{server}/#perf_advisor&p.perf_advisor.view=about")
    table = tab.get_by_role("group", name="Files not read")
    rows = table.locator("tbody tr")
    table.get_by_role("button", name="Show more (150 hidden)").click()
    table.get_by_role("button", name="Show more (50 hidden)").click()
    eventually(visitor.page, lambda: rows.count() == 250)
    assert "cut249.pt.trace.json" in text_of(rows.last).replace("\u200b", "")
    assert violations(tab) == []
    tab.get_by_role("searchbox", name="Find a file").fill("cut24")
    eventually(visitor.page, lambda: rows.count() == 10)
    # The address keeps what is looked for.
    visitor.page.reload()
    eventually(visitor.page, lambda: rows.count() == 10)
    tab.get_by_text("10 of 250").wait_for()
