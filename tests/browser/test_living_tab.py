"""The tab while things change: running analyses, new profiles, shared links."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support.browser import (
    PATIENCE_MS,
    ROOT,
    Visitor,
    capture_of,
    captures_at,
    change_of,
    choose_capture,
    downloaded,
    eventually,
    link,
    read,
    report_at,
    text_of,
)

SLOW, FIXED, XPLANE = "pytorch_input_slow", "pytorch_input_fixed", "jax_recompiling"
RANKS = 40
FINDING = "loader-in-main-process"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    directory = tmp_path / "logs"
    shutil.copytree(ROOT / "demo_logs" / SLOW, directory / SLOW)
    return directory


def worker_of(cache: Path) -> int | None:
    """The id of the process that runs analyses for a TensorBoard with this cache."""
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            environment = (entry / "environ").read_bytes() if b"worker_process" in command else b""
        except OSError:
            continue  # the process has ended
        if b"PERFADVISOR_CACHE_DIR=" + os.fsencode(cache) in environment.split(b"\0"):
            return int(entry.name)
    return None


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="there is no /proc")
def test_analysis_shows_progress_and_can_be_canceled(
    board: Callable[..., str], visitor: Visitor, tmp_path: Path
) -> None:
    (trace,) = (ROOT / "demo_logs" / SLOW).glob("*.gz")
    run = tmp_path / "logs" / "many"
    run.mkdir(parents=True)
    for rank in range(RANKS):
        shutil.copy(trace, run / f"worker{rank}.1795234073764326979.pt.trace.json.gz")
    server = board("--logdir", str(run.parent))
    capture, page, tab = capture_of(server, "many")["id"], visitor.page, visitor.tab()

    progress: dict[str, Any] = {}

    def has_progress() -> bool:
        progress.update(read(server, f"captures/{capture}/report"))
        assert "headline" not in progress, "the analysis ended before the test saw its progress"
        return (progress["progress"] or 0.0) >= 0.01  # shown as 1 %

    page.goto(f"{server}/{link(capture)}")
    tab.get_by_role("progressbar", name="Analysis").wait_for()
    eventually(page, has_progress, every_ms=10)
    process = worker_of(tmp_path / "cache")
    assert process is not None
    os.kill(process, signal.SIGSTOP)  # keep the progress as it was read
    progress.update(read(server, f"captures/{capture}/report"))
    percent = round(100 * progress["progress"])
    assert 0 < percent < 100
    bar = tab.locator(f"[role=progressbar][aria-valuenow='{percent}']")
    bar.wait_for()
    shown = text_of(tab.get_by_role("region", name="Analyzing the profile"))
    assert f"{progress['stage']} · {percent} %" in shown

    tab.get_by_role("button", name="Cancel").click()
    tab.get_by_role("heading", name="The analysis was canceled").wait_for()
    eventually(page, lambda: worker_of(tmp_path / "cache") is None)
    assert capture_of(server, "many")["status"] == "new"

    # The user can restart it.
    tab.get_by_role("button", name="Try again").click()
    tab.get_by_role("heading", level=1, name=re.compile("takes|nothing", re.IGNORECASE)).wait_for()
    assert capture_of(server, "many")["status"] == "done"
    # The browser logs the failed request for the canceled report.
    visitor.errors.clear()


def test_new_profiles_appear_on_reload(
    board: Callable[..., str], visitor: Visitor, logs: Path
) -> None:
    server = board("--logdir", str(logs))
    page, tab = visitor.page, visitor.tab()
    capture = capture_of(server, SLOW)["id"]
    slow = report_at(server, capture)["headline"]
    page.goto(f"{server}/{link(capture)}")
    tab.get_by_role("heading", level=1, name=slow).wait_for()
    files = tab.get_by_role("navigation", name="Log folder").get_by_role("link")
    # A single capture cannot be compared.
    assert files.all_inner_texts() == ["Runs"]
    assert SLOW in tab.get_by_role("combobox", name="Capture").input_value()

    shutil.copytree(ROOT / "demo_logs" / FIXED, logs / FIXED)
    page.wait_for_timeout(2_500)  # scans are cached for two seconds
    page.locator(".reload-button").click()
    eventually(page, lambda: files.all_inner_texts() == ["Runs", "Compare"])
    # The selected report stays on the screen …
    assert text_of(tab.get_by_role("heading", level=1)) == slow

    # … until its own file changes, also if somebody else had it analyzed first.
    (old,) = (logs / SLOW).glob("*.gz")
    (new,) = (logs / FIXED).glob("*.gz")
    shutil.copy(new, old)
    page.wait_for_timeout(2_500)
    fixed = report_at(server, capture_of(server, SLOW)["id"])["headline"]
    assert fixed != slow
    page.locator(".reload-button").click()
    tab.get_by_role("heading", level=1, name=fixed).wait_for()


def test_shared_link_opens_the_same_finding(
    board: Callable[..., str], visitor: Visitor, browser: Any, logs: Path
) -> None:
    for run in (FIXED, XPLANE):
        shutil.copytree(ROOT / "demo_logs" / run, logs / run)
    server = board("--logdir", str(logs))
    page, tab = visitor.page, visitor.tab()
    # Select a capture that is not the default.
    capture = next(item for item in reversed(captures_at(server)) if item["run"] != FIXED)
    report = report_at(server, capture["id"])
    finding = report["findings"][-1]
    page.goto(f"{server}/#perf_advisor")
    tab.get_by_role("link", name=capture["run"], exact=True).click()
    heading = tab.get_by_role("heading", level=1, name=report["headline"])
    heading.wait_for()
    opener = re.compile(re.escape(change_of(finding)))
    row = tab.get_by_role("button", name=opener).first
    if row.get_attribute("aria-expanded") == "false":  # the first finding is open already
        row.click()
    tab.locator(".is-open").get_by_text(finding["summary"]).first.wait_for()

    guest = Visitor(browser.new_context())
    try:
        guest.page.goto(page.url)
        guest_tab = guest.tab()
        guest_tab.get_by_role("heading", level=1, name=report["headline"]).wait_for()
        row = guest_tab.get_by_role("button", name=opener).first
        assert row.get_attribute("aria-expanded") == "true"
    finally:
        guest.context.close()
    assert guest.errors == []

    tab.get_by_role("navigation", name="Pages").get_by_role("link", name="Host").click()
    shown = text_of(tab.get_by_role("heading", level=1))
    page.reload()
    tab.get_by_role("heading", level=1, name=shown).wait_for()
    assert capture["run"] in tab.get_by_role("combobox", name="Capture").input_value()
    assert "p.perf_advisor.view=host" in page.url


def test_back_returns_and_a_dead_link_shows_no_other_profile(
    board: Callable[..., str], visitor: Visitor, logs: Path
) -> None:
    shutil.copytree(ROOT / "demo_logs" / FIXED, logs / FIXED)
    server = board("--logdir", str(logs))
    page, tab = visitor.page, visitor.tab()
    first, second = captures_at(server)
    headlines = [report_at(server, item["id"])["headline"] for item in (first, second)]
    page.goto(f"{server}/{link(first['id'])}")
    tab.get_by_role("heading", level=1, name=headlines[0]).wait_for()
    choose_capture(tab, second["run"])
    tab.get_by_role("heading", level=1, name=headlines[1]).wait_for()
    assert "finding=" not in page.url
    page.go_back()
    tab.get_by_role("heading", level=1, name=headlines[0]).wait_for()
    assert first["run"] in tab.get_by_role("combobox", name="Capture").input_value()

    page.goto(f"{server}/?again#perf_advisor&p.perf_advisor.capture=0123456789abcdef")
    tab.get_by_role("heading", name="The linked profile is not here").wait_for()
    assert tab.get_by_role("heading", level=1).count() == 1
    choose_capture(tab, second["run"])
    tab.get_by_role("heading", level=1, name=headlines[1]).wait_for()


def test_every_export_format_downloads(
    board: Callable[..., str], visitor: Visitor, browser: Any, logs: Path, tmp_path: Path
) -> None:
    server = board("--logdir", str(logs))
    page, tab = visitor.page, visitor.tab()
    capture = capture_of(server, SLOW)["id"]
    report = report_at(server, capture)
    page.goto(f"{server}/{link(capture)}")
    tab.get_by_role("heading", level=1, name=report["headline"]).wait_for()

    def saved(name: str) -> str:
        tab.get_by_text("Export", exact=True).click()
        return downloaded(page, tab.get_by_role("link", name=name)).decode()

    (exported,) = json.loads(saved("JSON"))["reports"]
    assert exported["findings"] == report["findings"]
    rule_ids = [finding["rule_id"] for finding in report["findings"]]
    results = json.loads(saved("SARIF"))["runs"][0]["results"]
    assert [result["ruleId"] for result in results] == rule_ids
    for name in ("Markdown", "Plain text"):
        text = " ".join(saved(name).split())  # plain text wraps its lines
        assert report["headline"] in text
        for finding in report["findings"]:
            assert (finding["heading"] or finding["title"]) in text

    file = tmp_path / "report.html"
    file.write_text(saved("Page (HTML)"), encoding="utf-8")
    reader = browser.new_page()
    reader.set_default_timeout(PATIENCE_MS)
    try:
        reader.goto(file.as_uri())
        reader.get_by_role("heading", level=1, name=report["headline"]).wait_for()
    finally:
        reader.close()


def test_files_page_gives_the_command_that_makes_a_profile_visible(
    board: Callable[..., str], visitor: Visitor, tmp_path: Path
) -> None:
    (source,) = (ROOT / "demo_logs" / XPLANE).rglob("*.xplane.pb")
    run = tmp_path / "logs" / "run"
    run.mkdir(parents=True)
    shutil.copy(source, run / "host.xplane.pb")
    broken = run.parent / "cut" / "plugins" / "profile" / "2026_01_01_00_00_00"
    broken.mkdir(parents=True)
    (broken / "host.xplane.pb").write_bytes(source.read_bytes()[:-100])
    server = board("--logdir", str(run.parent))
    with urlopen(f"{server}/data/plugins_listing", timeout=20) as answer:
        plugins = json.load(answer)
    if "profile" not in plugins:
        pytest.skip("the profile plugin is not installed")
    capture = capture_of(server, "run")
    assert capture["profile_run"] is None
    report_at(server, capture["id"])  # finish the analysis before its files are moved
    page, tab = visitor.page, visitor.tab()
    page.goto(f"{server}/{link(capture['id'], view='files')}")
    notes = tab.get_by_role("region", name="Setup")
    notes.get_by_text("it is truncated").wait_for()
    command = notes.locator("code").filter(has_text="mkdir")
    subprocess.run(command.inner_text(), shell=True, check=True, cwd=run.parent)

    page.wait_for_timeout(2_500)  # scans are cached for two seconds
    page.locator(".reload-button").click()
    row = (
        tab.get_by_role("group", name="Captures")
        .get_by_role("row")
        .filter(has_text=re.compile("^run"))
    )
    eventually(page, lambda: "\tyes\t" in text_of(row))
    # The moved files are another capture.
    assert capture_of(server, "run")["id"] != capture["id"]
