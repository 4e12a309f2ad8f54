"""A real TensorBoard on the demo profiles, and a real Chromium to look at it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).parents[2]
# Chromium's own background requests would be noise in a test that no request leaves the host.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
)
START_S = 60
ANALYSIS_S = 60


def find_chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A TensorBoard on a copy of the demo profiles, at a free port of the loopback."""
    logs = tmp_path_factory.mktemp("logs") / "demo_logs"
    shutil.copytree(ROOT / "demo_logs", logs)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cache = str(tmp_path_factory.mktemp("cache"))
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tensorboard.main",
            "--logdir",
            str(logs),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ],
        env={**os.environ, "PERFADVISOR_CACHE_DIR": cache},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{url}/data/plugin/perf_advisor/api/v1/captures", server)
        yield url
    finally:
        server.terminate()
        server.wait(timeout=30)


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert server.poll() is None, "TensorBoard ended"
        try:
            if json.load(urlopen(url, timeout=5))["captures"]:
                return
        except (URLError, ConnectionError):
            pass
        time.sleep(0.3)
    pytest.fail("TensorBoard did not answer in time")


@pytest.fixture(scope="session")
def captures(address: str) -> list[dict[str, Any]]:
    answer = json.load(urlopen(f"{address}/data/plugin/perf_advisor/api/v1/captures", timeout=10))
    found: list[dict[str, Any]] = answer["captures"]
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def report_of(address: str) -> Callable[[str], dict[str, Any]]:
    """Gives the report of a capture, waiting while it is being made."""

    def wait(capture: str) -> dict[str, Any]:
        url = f"{address}/data/plugin/perf_advisor/api/v1/captures/{capture}/report"
        deadline = time.monotonic() + ANALYSIS_S
        while time.monotonic() < deadline:
            with urlopen(url, timeout=10) as answer:
                if answer.status == 200:
                    report: dict[str, Any] = json.load(answer)
                    return report
            time.sleep(0.2)
        pytest.fail(f"no report of {capture} in time")

    return wait
