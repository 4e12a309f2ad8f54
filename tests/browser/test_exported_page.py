"""Exported pages in a real Chromium, opened from disk: no server, no network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tb_perfadvisor import analyze, show
from tb_perfadvisor.contract.model import Rejected
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.formats.render import document, render
from tb_perfadvisor.report.report import Report
from tests.support.browser import PATIENCE_MS, open_part

DEMO_LOGS = Path(__file__).parents[2] / "demo_logs"
SLOW_INPUT = DEMO_LOGS / "pytorch_input_slow"
HOSTILE = "</script><script>window.hacked=1</script><!--<script>\u2028<img src=x onerror=hacked=1>"


@pytest.fixture(scope="module")
def reports() -> list[Report]:
    names = ("pytorch_input_slow", "synthetic_gpu_allreduce_8rank", "jax_recompiling")
    return [
        analyze(DEMO_LOGS / name, Config(with_views=True, with_timelines=True)) for name in names
    ]


class Watched:
    """A page with a record of its requests and errors."""

    def __init__(self, browser: Any, theme: str) -> None:
        self.context = browser.new_context(
            color_scheme=theme, viewport={"width": 1280, "height": 900}
        )
        self.context.set_default_timeout(PATIENCE_MS)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "console", lambda line: self.errors.append(line.text) if line.type == "error" else None
        )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_exported_page_works_without_a_server(
    browser: Any, reports: list[Report], theme: str, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    content = document(reports, [Rejected(path=HOSTILE, reason=HOSTILE)])
    file.write_text(render(content, "html"), encoding="utf-8")
    watched = Watched(browser, theme)
    page = watched.page
    try:
        page.goto(file.as_uri())
        page.get_by_role("heading", level=1, name=f"{len(reports)} runs").wait_for()
        for report in reports:
            page.get_by_role("navigation", name="Log folder").get_by_role(
                "link", name="Runs"
            ).click()
            page.get_by_role("link", name=report.run, exact=True).first.click()
            page.wait_for_function(
                "text => document.querySelector('h1')?.innerText?.replaceAll('\\u00a0', ' ')"
                "?.includes(text)",
                arg=report.headline,
            )
            first = report.findings[0]
            # The headline may say what the change is about.
            change = (first.heading or first.title).partition(": ")[0]
            row = page.get_by_role("button", name=change).first
            if row.get_attribute("aria-expanded") == "false":
                row.click()
            # The timeline of the first event works without requests, zoomed out too.
            open_part(page, "Evidence")
            page.locator(".finding-body .event-button").first.click()
            timeline = page.locator(".timeline").first
            timeline.locator("canvas[data-drawn]").first.wait_for()
            timeline.get_by_role("button", name="Zoom out").click()
            page.wait_for_timeout(200)
            assert timeline.get_by_text("around the event").count() == 1
            assert page.get_by_role("link", name="Perfetto trace").count() == 0
        # The page contains the data of its charts.
        page.locator("svg").first.wait_for()
        dark = page.evaluate("document.documentElement.dataset.theme")
        assert dark == theme
        assert page.evaluate("window.hacked") is None
        open_part(page, "About")
        page.get_by_role("link", name="About this rule").first.click()
        page.get_by_role("link", name="All rules").wait_for()
        assert page.get_by_text("Export").count() == 0
    finally:
        watched.context.close()
    assert watched.errors == []
    assert watched.requests == [file.as_uri()]


# Links whose first line is on the screen, where something else would take the click.
COVERED = """() => [...document.querySelectorAll(".run-name a")].filter((link) => {
  const { left, top, width, height } = link.getClientRects()[0];
  const [x, y] = [left + Math.min(width, 8) / 2, top + height / 2];
  return y > 0 && y < innerHeight && !link.contains(document.elementFromPoint(x, y));
}).map((link) => link.innerText)"""
SEEN = """() => [...document.querySelectorAll(".run-name a")].filter((link) => {
  const { top, bottom } = link.getClientRects()[0];
  return top > 0 && bottom < innerHeight;
}).map((link) => link.innerText)"""


@pytest.mark.parametrize("width", [1280, 400])
def test_run_names_take_clicks_at_every_scroll_position(
    browser: Any, reports: list[Report], width: int, tmp_path: Path
) -> None:
    named = [
        structs.replace(report, id=f"{report.id}{length}", run="name_of_" * length + report.run)
        for report in reports
        for length in (0, 1, 3, 6, 12)
    ]
    file = tmp_path / "report.html"
    file.write_text(render(document(named, []), "html"), encoding="utf-8")
    watched = Watched(browser, "light")
    page = watched.page
    try:
        page.set_viewport_size({"width": width, "height": 500})
        page.goto(file.as_uri())
        page.get_by_role("link", name=named[0].run, exact=True).wait_for()
        seen: set[str] = set()
        height = page.evaluate("document.documentElement.scrollHeight")
        for top in range(0, height, 200):
            for left in (0, 300):
                page.evaluate(f"scrollTo(0, {top})")
                page.locator(".table-scroll").evaluate(f"table => {{ table.scrollLeft = {left} }}")
                page.wait_for_timeout(100)
                assert page.evaluate(COVERED) == []
                seen.update(page.evaluate(SEEN))
    finally:
        watched.context.close()
    assert seen == {report.run for report in named}


# The policy of the parent page also applies to a frame. Notebook editors such as VS Code load
# nothing from other origins, but run scripts that are part of an output.
POLICIES = {
    "jupyter": "",
    "editor": "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' https: data:; font-src 'self' https:; "
    "connect-src https:; child-src https: data: blob:",
}


@pytest.mark.parametrize("policy", POLICIES)
def test_notebook_shows_the_page_in_a_sandbox(browser: Any, tmp_path: Path, policy: str) -> None:
    page_in_cell = show(DEMO_LOGS / "jax_recompiling")
    notebook = tmp_path / "notebook.html"
    head = f'<meta http-equiv="Content-Security-Policy" content="{POLICIES[policy]}">'
    notebook.write_text(
        f"<!doctype html>{head if POLICIES[policy] else ''}<p>cell</p>{page_in_cell._repr_html_()}",
        encoding="utf-8",
    )
    watched = Watched(browser, "light")
    try:
        watched.page.goto(notebook.as_uri())
        frame = watched.page.frame_locator("iframe")
        heading = frame.get_by_role("heading", level=1)
        heading.wait_for()
        headline = analyze(DEMO_LOGS / "jax_recompiling").headline
        assert headline in heading.inner_text().replace("\xa0", " ")
    finally:
        watched.context.close()
    assert watched.errors == []
    assert [url for url in watched.requests if not url.startswith(("file:", "about:"))] == []


NOTEBOOK = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {"kernelspec": {"name": "python3", "display_name": "", "language": "python"}},
    "cells": [
        {
            "cell_type": "code",
            "id": "show",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": f"%load_ext tb_perfadvisor\n%perfadvisor {SLOW_INPUT}",
        }
    ],
}


@pytest.mark.nightly
def test_real_notebook_shows_the_page(browser: Any, tmp_path: Path) -> None:
    pytest.importorskip("nbconvert")
    pytest.importorskip("ipykernel")
    (tmp_path / "run.ipynb").write_text(json.dumps(NOTEBOOK), encoding="utf-8")
    command = ["nbconvert", "--execute", "--to", "html", str(tmp_path / "run.ipynb")]
    subprocess.run(
        [sys.executable, "-m", *command], check=True, capture_output=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(DEMO_LOGS.parent), "IPYTHONDIR": str(tmp_path)},
    )  # fmt: skip
    watched = Watched(browser, "light")
    # The notebook's page requests fonts and MathJax from the web; ours requests nothing.
    watched.page.route(re.compile("^https?:"), lambda route: route.abort())
    try:
        watched.page.goto((tmp_path / "run.html").as_uri())
        frame = watched.page.frame_locator("iframe[title='Perf Advisor']")
        frame.get_by_role("heading", level=1).wait_for()
        report = analyze(SLOW_INPUT)
        assert report.first is not None
        title, _, _ = report.findings[report.first.index].title.partition(": ")
        first = frame.locator("[aria-expanded=true]").first.inner_text().replace("\xa0", " ")
        assert first.startswith(title)
        frame.locator(".timeline canvas[data-drawn]").first.wait_for()
        assert frame.locator("html").evaluate("e => e.scrollWidth <= innerWidth")
    finally:
        watched.context.close()
    assert [line for line in watched.errors if "Failed to load resource" not in line] == []
