"""A real TensorBoard on a free loopback port, and helpers for its routes and pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).parents[2]
START_S = 180
ANALYSIS_S = 180
# Several times what anything takes on a quiet machine.
PATIENCE_MS = 120_000
API = "data/plugin/perf_advisor/api/v1"


@contextmanager
def ended_after(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a process on exit."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()


@contextmanager
def serving(
    *arguments: str,
    cache: Path,
    prefix: str = "",
    within: Sequence[str] = (),
    environment: dict[str, str] | None = None,
    has_captures: bool = True,
) -> Iterator[str]:
    """Run TensorBoard and yield its URL, without a slash at the end.

    Args:
        *arguments: Command line arguments besides host and port.
        cache: The directory for results.
        prefix: The `--path_prefix`.
        within: A command that runs TensorBoard, for example after mounting something.
        environment: More environment variables.
        has_captures: Whether there is something to wait for.
    """
    port = free_port()
    server = subprocess.Popen(
        [
            *within,
            *(sys.executable, "-m", "tensorboard.main"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *((f"--path_prefix={prefix}",) if prefix else ()),
            *arguments,
        ],
        env={**os.environ, "PERFADVISOR_CACHE_DIR": str(cache), **(environment or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with ended_after(server):
        address = f"http://127.0.0.1:{port}{prefix}"
        wait_until(lambda: len(captures_at(address)) >= has_captures, server)
        yield address


def free_port() -> int:
    """A free port."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(claim: Callable[[], bool], server: subprocess.Popen[bytes]) -> None:
    """Wait for a starting server."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert server.poll() is None, "the server ended"
        try:
            if claim():
                return
        except (URLError, ConnectionError):
            pass
        time.sleep(0.2)
    pytest.fail("the server did not respond in time")


def read(address: str, path: str) -> Any:
    """The JSON of a route."""
    with urlopen(f"{address}/{API}/{path}", timeout=60) as answer:
        assert answer.status in (200, 202), path  # 202: the analysis is running
        return json.load(answer)


def captures_at(address: str) -> list[dict[str, Any]]:
    """The captures in the log directory."""
    captures: list[dict[str, Any]] = read(address, "captures")["captures"]
    return captures


def report_at(address: str, capture: str) -> dict[str, Any]:
    """The report of a capture, once its analysis has finished."""
    deadline = time.monotonic() + ANALYSIS_S
    while time.monotonic() < deadline:
        with urlopen(f"{address}/{API}/captures/{capture}/report", timeout=60) as answer:
            if answer.status == 200:
                report: dict[str, Any] = json.load(answer)
                return report
        time.sleep(0.2)
    pytest.fail(f"no report of {capture} in time")


def change_of(finding: dict[str, Any]) -> str:
    """What a finding advises, without what it is about: the headline may say that."""
    title: str = finding["heading"] or finding["title"]
    return title.partition(": ")[0]


def capture_of(address: str, run: str) -> dict[str, Any]:
    """The only capture of a run."""
    (capture,) = [item for item in captures_at(address) if item["run"] == run]
    return capture


def text_of(locator: Any) -> str:
    """The text of an element, with plain spaces in place of no-break spaces."""
    text: str = locator.inner_text()
    return text.replace("\xa0", " ")


def link(capture: str, **values: str) -> str:
    parts = {"capture": capture, **values}
    return "#perf_advisor" + "".join(f"&p.perf_advisor.{key}={parts[key]}" for key in parts)


def choose_capture(tab: Any, name: str) -> None:
    """Choose a capture in the picker by a part of its name."""
    picker = tab.get_by_role("combobox", name="Capture")
    picker.click()
    picker.fill(name)
    tab.get_by_role("option").filter(has_text=name).first.click()


def open_part(finding: Any, name: str) -> None:
    """Open a part of a finding, such as its evidence."""
    finding.get_by_role("tab", name=name, exact=True).click()


def downloaded(page: Any, button: Any) -> bytes:
    with page.expect_download() as waiting:
        button.click()
    return Path(waiting.value.path()).read_bytes()


WINDOW = {"viewport": {"width": 1280, "height": 1000}, "accept_downloads": True}

# Records layout shifts that no input caused (web.dev/cls).
WATCH_SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const shift of list.getEntries()) if (!shift.hadRecentInput) shifts.push(shift.value);
}).observe({ type: "layout-shift", buffered: true });
"""


FRAME = "iframe[src*='perf_advisor']"


class Visitor:
    """A browser page with a record of the errors in the tab."""

    def __init__(self, context: Any) -> None:
        self.context = context
        context.set_default_timeout(PATIENCE_MS)
        self.page = context.new_page()
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._note)

    def _note(self, line: Any) -> None:
        # Ignore TensorBoard's own errors: fonts missing below a prefix, and frames without icons.
        if line.type == "error" and "perf_advisor" in line.location.get("url", ""):
            self.errors.append(f"{line.text} ({line.location['url']})")

    def tab(self, *outer: str) -> Any:
        """The frame of the tab, inside outer frames."""
        frame = self.page
        for selector in (*outer, FRAME):
            frame = frame.frame_locator(selector)
        return frame

    def open(self, url: str, *, dark: bool = False) -> Any:
        """Load the tab at an address of TensorBoard, and give its frame.

        TensorBoard itself takes seconds to start. It stays as it is where the page shows it.
        """
        site, _, place = url.partition("#")
        if self.page.url.partition("#")[0] == site and self.page.locator(FRAME).count():
            # A document that is being replaced must not be taken for the new one.
            self.tab().locator("html").evaluate("html => html.setAttribute('data-old', '')")
            self.page.evaluate("place => { location.hash = place }", place)
            self._load("frame.src")
        else:
            self.page.goto(url)
        self.darken(dark)
        tab = self.tab()
        tab.locator(f"html[data-theme={'dark' if dark else 'light'}]:not([data-old])").wait_for()
        return tab

    def _load(self, address: str) -> None:
        """Load something in the tab's frame, without an entry in the history."""
        script = f"frame => frame.contentWindow.location.replace({address})"
        self.page.locator(FRAME).evaluate(script)

    def darken(self, dark: bool) -> None:
        """Choose the theme as TensorBoard does, whose button has no name that lasts."""
        script = "dark => document.body.classList.toggle('dark-mode', dark)"
        self.page.evaluate(script, dark)

    def leave(self) -> None:
        """Undo what a test did to the window."""
        self.page.unroute_all()
        self.context.unroute_all()
        self.page.set_viewport_size(WINDOW["viewport"])
        if self.page.url.startswith("http"):
            # The tab asks for news, and its server may end with the test.
            if self.page.locator(FRAME).count():
                self._load("'about:blank'")
            self.page.evaluate("() => { localStorage.clear(); sessionStorage.clear() }")
        self.errors.clear()


def eventually(
    page: Any, claim: Callable[[], bool], within_s: float = 120, every_ms: int = 100
) -> None:
    """Wait until something is true, while the page runs."""
    for _ in range(round(within_s * 1000 / every_ms)):
        if claim():
            return
        page.wait_for_timeout(every_ms)
    pytest.fail("the condition never became true")


def settle(frame: Any) -> None:
    """Wait until a page of the tab has fetched what it shows, and has drawn it."""
    html = frame.locator("html")
    eventually(html.page, lambda: frame.locator(".loading, .waiting").count() == 0, every_ms=20)
    # Charts are drawn when their size is known, and shifts are told after that.
    html.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => setTimeout(() =>"
        " requestAnimationFrame(() => setTimeout(done, 50)), 50)))"
    )


def violations(frame: Any) -> list[tuple[str, list[str]]]:
    """The accessibility rules that axe finds violated in a frame, with some of the elements."""
    axe = pytest.importorskip("axe_playwright_python")
    source = (Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    html = frame.locator("html")
    # What is still fading in has too little contrast for a moment.
    html.evaluate(
        "() => Promise.allSettled(document.getAnimations()"
        ".filter(a => a.effect.getComputedTiming().endTime < Infinity).map(a => a.finished))"
    )
    html.evaluate(f"() => {{ if (!window.axe) {{ {source} }} }}")
    options = '{ resultTypes: ["violations"] }'
    found = html.evaluate(f"async () => (await axe.run(document, {options})).violations")
    return [(rule["id"], [node["html"] for node in rule["nodes"][:3]]) for rule in found]
