"""A real TensorBoard on the demo profiles, and a real Chromium to look at it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from boards import ROOT, captures_at, report_at, serving

# Chromium's own background requests would be noise in a test that no request leaves the host.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    # Names of other machines, at which plain http is no secure context.
    "--host-resolver-rules=MAP *.example 127.0.0.1",
)


def find_chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A TensorBoard on a copy of the demo profiles."""
    logs = tmp_path_factory.mktemp("logs") / "demo_logs"
    shutil.copytree(ROOT / "demo_logs", logs)
    with serving("--logdir", str(logs), cache=tmp_path_factory.mktemp("cache")) as url:
        yield url


@pytest.fixture(scope="session")
def captures(address: str) -> list[dict[str, Any]]:
    return captures_at(address)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Callable[..., Any]]:
    """Starts Chromium: a browser without a profile, or one that keeps a profile in a folder."""
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:

        def start(profile: str | None = None, **options: Any) -> Any:
            shared = {"executable_path": path, "args": list(ARGUMENTS)}
            if profile is None:
                return driver.chromium.launch(**shared)
            return driver.chromium.launch_persistent_context(profile, **shared, **options)

        yield start


@pytest.fixture(scope="session")
def browser(chromium: Callable[..., Any]) -> Iterator[Any]:
    started = chromium()
    yield started
    started.close()


@pytest.fixture(scope="session")
def report_of(address: str) -> Callable[[str], dict[str, Any]]:
    """Gives the report of a capture, waiting while it is being made."""
    return lambda capture: report_at(address, capture)
