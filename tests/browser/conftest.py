"""A real TensorBoard on the demo profiles, and a real Chromium to view it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import (
    ROOT,
    WATCH_SHIFTS,
    WINDOW,
    Visitor,
    captures_at,
    link,
    report_at,
    serving,
)
from tests.support.browser import read as read_at

# Chromium's background requests would disturb the tests that no request leaves the host.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    # Stand-ins for other hosts, where plain http is not a secure context.
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
    """Starts Chromium, with a profile folder or without."""
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
    """Gives the report of a capture, waiting for its analysis."""
    return lambda capture: report_at(address, capture)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts a TensorBoard that ends with the test."""
    with ExitStack() as running:
        yield lambda *arguments, **options: running.enter_context(
            serving(*arguments, cache=tmp_path / "cache", **options)
        )


@pytest.fixture(scope="session")
def windows(browser: Any) -> Iterator[list[Visitor]]:
    """Windows that tests open one after the other."""
    kept: list[Visitor] = []
    yield kept
    for window in kept:
        window.context.close()


def new_window(browser: Any) -> Visitor:
    context = browser.new_context(**WINDOW)
    context.add_init_script(WATCH_SHIFTS)
    return Visitor(context)


@contextmanager
def window_of(
    browser: Any, windows: list[Visitor], request: pytest.FixtureRequest
) -> Iterator[Visitor]:
    """A window as after a start, without errors in the tab at the end of the test."""
    failures = request.session.testsfailed
    window = windows.pop() if windows else new_window(browser)
    yield window
    errors = list(window.errors)
    if errors or request.session.testsfailed > failures:
        window.context.close()
    else:
        window.leave()
        windows.append(window)
    assert errors == []


@pytest.fixture
def visitor(
    browser: Any, windows: list[Visitor], request: pytest.FixtureRequest
) -> Iterator[Visitor]:
    """The window of a user."""
    with window_of(browser, windows, request) as window:
        yield window


@pytest.fixture
def guest(
    browser: Any, windows: list[Visitor], request: pytest.FixtureRequest
) -> Iterator[Visitor]:
    """The window of another user, with a context of its own."""
    with window_of(browser, windows, request) as window:
        yield window


@pytest.fixture
def read(address: str) -> Callable[[str], dict[str, Any]]:
    """Reads a route."""

    return lambda path: read_at(address, path)


@pytest.fixture
def ids(
    captures: list[dict[str, Any]], report_of: Callable[[str], dict[str, Any]]
) -> Callable[[str], str]:
    """The id of a run's capture, once it is analyzed."""

    def find(run: str) -> str:
        capture_id: str = next(capture["id"] for capture in captures if capture["run"] == run)
        report_of(capture_id)
        return capture_id

    return find


@pytest.fixture
def opened(visitor: Visitor, address: str) -> Callable[..., Any]:
    """Opens a page of the tab."""

    def go(view: str, capture: str, *, width: int = 1280, dark: bool = False, **rest: str) -> Any:
        visitor.page.set_viewport_size({"width": width, "height": 1000})
        tab = visitor.open(f"{address}/{link(capture, view=view, **rest)}", dark=dark)
        tab.get_by_role("heading", level=1).first.wait_for()
        return tab

    return go
