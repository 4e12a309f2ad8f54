"""The tab in a real TensorBoard, and the summaries for TensorBoards without it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

Perfadvisor = Callable[..., str]
API = "data/plugin/perf_advisor/api/v1"
START_S, ANALYSIS_S = 60, 60


def _until(answer: Callable[[], Any], seconds: float) -> Any:
    """What a function returns, once that is not None."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = answer()
        if found is not None:
            return found
        time.sleep(0.1)
    raise TimeoutError(answer)


@pytest.fixture(scope="module")
def address(logdir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a TensorBoard on the demo profiles."""
    log = tmp_path_factory.mktemp("tensorboard") / "log.txt"
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir)]
    with log.open("w") as stream:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", "0"],
            stdout=stream, stderr=stream, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip

    def started() -> str | None:
        text = log.read_text()
        assert server.poll() is None, text
        shown = re.search(r"http://127\.0\.0\.1:\d+/", text)
        return shown and shown[0]

    try:
        yield _until(started, START_S)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    assert "perf_advisor" not in log.read_text()


def _json(url: str) -> Any:
    with urlopen(url, timeout=30) as answer:
        return json.load(answer)


def test_tensorboard_lists_the_tab_and_its_neighbor(address: str) -> None:
    plugins = _json(f"{address}data/plugins_listing")
    assert plugins["perf_advisor"]["enabled"] is True
    # Older Profile tabs show only beside TensorFlow.
    if version("tensorboard-plugin-profile") >= "2.19":
        assert "profile" in plugins
    with urlopen(f"{address}data/plugin/perf_advisor/static/index.js", timeout=30) as answer:
        assert len(answer.read()) > 100_000


def test_the_listing_and_a_report(address: str) -> None:
    def listed() -> Any:
        found = _json(f"{address}{API}/captures")["captures"]
        return found if len(found) >= 13 else None

    captures = _until(listed, ANALYSIS_S)
    (slow,) = (each for each in captures if each["run"] == "pytorch_input_slow")

    def report() -> Any:
        try:
            with urlopen(f"{address}{API}/captures/{slow['id']}/report", timeout=30) as answer:
                return json.load(answer) if answer.status == 200 else None
        except HTTPError as error:
            raise AssertionError(error.read()) from error

    assert _until(report, ANALYSIS_S)["findings"][0]["rule_id"] == "input-stall"


def test_published_summaries_can_be_read(logdir: Path, perfadvisor: Perfadvisor) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    perfadvisor("publish", logdir, "--run", "^pytorch_input_slow$")
    written = EventAccumulator(str(logdir / "pytorch_input_slow" / "perf_advisor"))
    written.Reload()
    assert "perf_advisor/summary" in written.PluginTagToContent("text")
    assert "perf_advisor/step_time_ms" in written.PluginTagToContent("scalars")


def test_doctor_finds_nothing_wrong_with_tensorboard(
    logdir: Path, perfadvisor: Perfadvisor
) -> None:
    printed = perfadvisor("doctor", logdir)
    assert "cannot be imported" not in printed
    assert "cannot start" not in printed
