"""Recording the next steps of a running program from the tab."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tb_perfadvisor.instrument.record_requests import REQUEST
from tests.support.browser import Visitor, captures_at, ended_after, eventually, read

pytest.importorskip("numpy")

PROGRAM = """
import time
import numpy as np

a = np.ones((40, 40))
while True:
    for _ in range(20):
        a = np.tanh(a @ a)
    time.sleep(0.01)
"""
RUNS = "#perf_advisor&p.perf_advisor.view=runs"


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Path]:
    """The log directory of a program under `run`, which records when it is asked.

    Besides, it records once at its beginning, in case that it ends soon.
    """
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    logs = tmp_path / "logs"
    logs.mkdir()
    command = [sys.executable, "-m", "tb_perfadvisor", "run", "--logdir", str(logs / "loop")]
    # The first recording at the latest after so many steps: an hour and more.
    command += ["--first", "1000000", "--", sys.executable, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with ended_after(process):
        yield logs


def test_a_click_records_the_next_steps(
    board: Callable[..., str], visitor: Visitor, logs: Path
) -> None:
    server = board("--logdir", str(logs))  # waits for the early recording
    eventually(visitor.page, lambda: read(server, "captures")["programs"] == 1)
    before = {each["id"] for each in captures_at(server)}
    tab = visitor.open(f"{server}/{RUNS}")
    tab.get_by_role("button", name="Record now").click()
    tab.get_by_text("1 program asked.").wait_for()

    def new() -> list[str]:
        return [each["run"] for each in captures_at(server) if each["id"] not in before]

    eventually(visitor.page, lambda: len(new()) == 1)
    # It appears on the page that is open.
    tab.get_by_role("link", name=new()[0]).first.wait_for()
    assert not (logs / "loop" / REQUEST).exists()
    # The page may ask for the early one, whose place it has taken.
    visitor.errors[:] = [
        each for each in visitor.errors if not any(gone in each for gone in before)
    ]


def test_pages_of_other_origins_are_refused(
    board: Callable[..., str], visitor: Visitor, logs: Path
) -> None:
    server = board("--logdir", str(logs))
    eventually(visitor.page, lambda: read(server, "captures")["programs"] == 1)
    route = "data/plugin/perf_advisor/api/v1/record"
    page = "http://elsewhere.example/"
    form = f"<form method=post action={server}/{route}><button>Win a prize</button></form>"
    visitor.page.route(page, lambda asked: asked.fulfill(content_type="text/html", body=form))
    visitor.page.goto(page)
    with visitor.page.expect_response(f"{server}/{route}") as waiting:
        visitor.page.get_by_role("button").click()
    assert waiting.value.status == 403
    assert not (logs / "loop" / REQUEST).exists()
    visitor.errors.clear()  # the browser logs what was refused
