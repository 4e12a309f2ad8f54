"""The tab in a real Chromium, on a real TensorBoard, over the demo profiles."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

pytestmark = pytest.mark.browser

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


def _chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
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
        _wait_for(f"{url}/data/plugin/perf_advisor/api/v1/captures", server)
        yield url
    finally:
        server.terminate()
        server.wait(timeout=30)


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
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


@pytest.fixture(scope="module")
def captures(address: str) -> list[dict[str, Any]]:
    answer = json.load(urlopen(f"{address}/data/plugin/perf_advisor/api/v1/captures", timeout=10))
    found: list[dict[str, Any]] = answer["captures"]
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = _chromium()
    if path is None:
        pytest.skip("no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield chromium
        chromium.close()


def _report(address: str, capture: str) -> dict[str, Any]:
    """The report, waiting while it is being made."""
    url = f"{address}/data/plugin/perf_advisor/api/v1/captures/{capture}/report"
    deadline = time.monotonic() + ANALYSIS_S
    while time.monotonic() < deadline:
        with urlopen(url, timeout=10) as answer:
            if answer.status == 200:
                report: dict[str, Any] = json.load(answer)
                return report
        time.sleep(0.2)
    pytest.fail(f"no report of {capture} in time")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_capture_shows_its_first_finding(
    browser: Any, address: str, captures: list[dict[str, Any]], theme: str
) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    errors: list[str] = []
    requests: list[str] = []
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    try:
        assert len(captures) >= 12
        for index, capture in enumerate(captures):
            report = _report(address, capture["id"])
            # A new query makes a new page load: the hash alone would not.
            dark = "true" if theme == "dark" else "false"
            page.goto(
                f"{address}/?darkMode={dark}&visit={index}"
                f"#perf_advisor&p.perf_advisor.capture={capture['id']}"
            )
            frame = page.frame_locator("iframe[src*='perf_advisor']")
            heading = frame.get_by_role("heading", level=1)
            heading.wait_for(timeout=30_000)
            # The tab keeps numbers and their units on one line by spaces that do not break.
            assert report["headline"] in heading.inner_text().replace("\xa0", " ")
            if report["findings"]:
                title = report["findings"][0]["title"]
                row = frame.get_by_role("button", name=re.compile(re.escape(title))).first
                row.wait_for(timeout=10_000)
                row.click()
                summary = frame.get_by_text(report["findings"][0]["summary"]).first
                summary.wait_for(timeout=10_000)
            background = frame.locator("body").evaluate(
                "body => getComputedStyle(body).backgroundColor"
            )
            channels = [int(channel) for channel in re.findall(r"\d+", background)[:3]]
            assert (sum(channels) < 3 * 128) == (theme == "dark"), background
        assert not errors
        elsewhere = [url for url in requests if not url.startswith((address, "data:", "blob:"))]
        assert not elsewhere
    finally:
        page.close()


def test_narrow_windows_do_not_scroll_sideways(
    browser: Any, address: str, captures: list[dict[str, Any]]
) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 740})
    try:
        capture = next(c for c in captures if c["run"] == "pytorch_ddp_straggler")
        _report(address, capture["id"])
        page.goto(f"{address}/#perf_advisor&p.perf_advisor.capture={capture['id']}")
        frame = page.frame_locator("iframe[src*='perf_advisor']")
        frame.get_by_role("heading", level=1).wait_for(timeout=30_000)
        overflow = frame.locator("html").evaluate("html => html.scrollWidth - html.clientWidth")
        assert overflow <= 0
    finally:
        page.close()
