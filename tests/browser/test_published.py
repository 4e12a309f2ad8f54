"""Published findings in a TensorBoard that has only its own plugins, as in hosted viewers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import PATIENCE_MS
from tests.support.waiting import address_in

DEMO_LOGS = Path(__file__).parents[2] / "demo_logs"
START_S = 90
STOCK = """
import sys
from tensorboard import default, program
board = program.TensorBoard(default.get_static_plugins())
board.configure(sys.argv)
sys.exit(board.main())
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    logs = tmp_path / "logs"
    shutil.copytree(DEMO_LOGS / "pytorch_input_slow", logs / "slow")
    subprocess.run([sys.executable, "-m", "tb_perfadvisor", "publish", str(logs)], check=True)
    log = tmp_path / "log.txt"
    arguments = ["--logdir", str(logs), "--host", "127.0.0.1", "--port", "0"]
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", STOCK, *arguments],
            stdout=stream,
            stderr=stream,
        )
    try:
        yield address_in(log, process)
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    made = browser.new_page(viewport={"width": 1280, "height": 1600})
    made.set_default_timeout(PATIENCE_MS)
    yield made
    made.close()


def test_the_stock_tabs_show_findings_and_numbers(page: Any, address: str) -> None:
    page.goto(f"{address}#text")
    page.get_by_text("Feed the step without making it wait").first.wait_for()
    # The numbers that the README shows for this profile.
    page.get_by_text(
        "Waiting for input takes 48.7 % of each step. Load batches in worker processes (each takes "
        "56.5 ms now): up to −61.5 ms of 116, probably −36.6"
    ).first.wait_for()
    # Markdown code and tables are rendered.
    assert page.locator("pre code").count() >= 1
    assert page.locator("table td").count() >= 1

    page.goto(f"{address}#timeseries")
    page.get_by_text("perf_advisor/input_wait_pct").first.wait_for()
    card = page.locator("scalar-card").filter(has_text="input_wait_pct").first
    card.locator("line-chart").hover()
    tooltip = page.locator(".tooltip").filter(has_text="slow/perf_advisor")
    # The value of the point in the slow run.
    tooltip.get_by_text(re.compile(r"^\s*48\.7\d?\s*$")).first.wait_for()
