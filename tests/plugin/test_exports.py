"""The route that downloads a report, and how documents are made: elsewhere, in turn, once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.plugin import progress
from tb_perfadvisor.plugin.documents import Export
from tb_perfadvisor.plugin.jobs import Job, JobQueue, Limits
from tb_perfadvisor.plugin.results import key_of
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.report.formats.render import render
from tb_perfadvisor.testing import draw, run_of
from tests.support.fake_worker import FAKE_WORKER
from tests.support.served_tab import Behave, Tab, error_of
from tests.support.waiting import eventually

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""


@pytest.fixture
def address(tab: Tab) -> str:
    """The address of exports of a capture that has been analyzed."""
    tab.put("run")
    capture_id = tab.only_id()
    config = Config(select=("input-stall",))
    report = build_report(analyze_run(run_of(draw(SLOW)), config), config)
    tab.store(capture_id, report__json=msgspec.json.encode(report))
    return f"api/v1/captures/{capture_id}/export"


def report_of(tab: Tab) -> Any:
    from tb_perfadvisor.report.report import Report

    (entry,) = tab.plugin.backend.catalog.snapshot.entries.values()
    content = tab.cache.read(entry.key, "report.json")
    assert content is not None
    return msgspec.json.decode(content, type=Report)


def use_fake_worker(tab: Tab) -> None:
    """Make documents with a process that does what a test says."""
    results = tab.plugin.backend.results()
    results._documents = JobQueue(Limits(60, 0), FAKE_WORKER)


def test_export_needs_an_analysis_and_a_known_format(tab: Tab) -> None:
    tab.put("run")
    address = f"api/v1/captures/{tab.only_id()}/export"
    assert tab.get(f"{address}?format=json").status_code == 409
    answer = tab.get(f"{address}?format=pdf")
    assert answer.status_code == 404
    assert error_of(answer)["hint"].startswith("Formats: html, json, markdown")


@pytest.mark.parametrize("format", ["json", "markdown", "html", "sarif", "text"])
def test_export_is_what_the_command_prints(tab: Tab, address: str, format: str) -> None:
    answer = tab.get(f"{address}?format={format}")
    assert answer.status_code == 200
    assert answer.text == render(report_of(tab), format)


def test_a_document_is_made_once(tab: Tab, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tab.get(f"{address}?format=markdown")
    use_fake_worker(tab)
    monkeypatch.setenv("FAKE_WORKER", "crash")  # it would fail if it were made again
    assert tab.get(f"{address}?format=markdown").data == first.data
    assert tab.get(f"{address}?format=text").status_code == 500


def test_one_process_makes_documents_whatever_the_number_of_requests(
    tab: Tab, address: str, behave: Behave, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = behave("gate")
    use_fake_worker(tab)
    monkeypatch.setattr(progress, "_MOST_WAITING", 2)
    first = threading.Thread(target=tab.get, args=(f"{address}?format=json",))
    first.start()
    eventually(lambda: log.exists() and log.read_text() != "")
    # The process works on the first until the gate opens. The others get their places at once.
    for place, format in enumerate(("text", "html")):
        answer = tab.get(f"{address}?format={format}")
        assert (answer.status_code, answer.json["status"]) == (202, "queued")
        assert answer.json["queue_position"] == place
    assert tab.get(f"{address}?format=sarif").status_code == 503  # two are waiting
    assert tab.get(f"{address}?format=html").json["queue_position"] == 1  # it keeps its place
    assert len(log.read_text().splitlines()) == 1
    log.with_name("gate").touch()
    first.join(15)


def test_a_document_is_there_once_its_turn_has_come(
    tab: Tab, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, running = tab.plugin.backend.results(), threading.Event()
    results._documents.submit(
        Job("other", (), tab.cache.stage, lambda *_: None, is_done=lambda: running.wait(60))
    )
    answer = tab.get(f"{address}?format=markdown")
    assert (answer.status_code, answer.json["status"]) == (202, "queued")
    running.set()
    eventually(lambda: tab.get(f"{address}?format=markdown").status_code == 200, 60)
    assert tab.get(f"{address}?format=markdown").text == render(report_of(tab), "markdown")


def test_a_document_that_takes_long_can_be_asked_for_again(
    tab: Tab, address: str, behave: Behave, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave("forever")
    use_fake_worker(tab)
    monkeypatch.setattr(progress, "_WAIT_S", 0.1)
    answer = tab.get(f"{address}?format=text")
    assert (answer.status_code, answer.json["status"]) == (202, "running")
    tab.plugin.close()


def test_a_killed_process_is_not_said_to_need_memory(
    tab: Tab, address: str, behave: Behave
) -> None:
    behave("killed")
    use_fake_worker(tab)
    error = error_of(tab.get(f"{address}?format=text"))
    assert error["message"] == "the export was killed from outside."


def test_a_damaged_result_is_missing(tab: Tab, address: str, tmp_path: Path) -> None:
    (path,) = (tmp_path / "cache" / "entries").glob("*/report.json")
    path.write_bytes(b"{}")
    assert tab.get(f"{address}?format=text").status_code == 409


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Referer": "http://evil.example/page"}, 403),
        ({"Referer": "http://localhost/#perf_advisor"}, 200),
        ({"User-Agent": "Mozilla/5.0 (X11; Linux)"}, 403),
        ({"User-Agent": "curl/8"}, 200),
    ],
)
def test_other_sites_make_no_documents(
    tab: Tab, address: str, headers: dict[str, str], status: int
) -> None:
    assert tab.get(f"{address}?format=markdown", headers=headers).status_code == status


def test_links_of_the_tab_work_behind_a_proxy_without_https(tab: Tab, address: str) -> None:
    # The proxy rewrites the host; the browser sends no Sec-Fetch-Site.
    token = tab.get("api/v1/captures").json["token"]
    headers = {"User-Agent": "Mozilla/5.0", "Referer": "http://hub.example/"}
    assert tab.get(f"{address}?format=text", headers=headers).status_code == 403
    with_token = f"{address}?format=text&token={token}"
    assert tab.get(with_token, headers=headers).status_code == 200


def test_the_key_is_of_what_is_asked_for() -> None:
    assert key_of(Export("a", "json")) != key_of(Export("a", "html"))
    assert key_of(Export("a", "json")) == key_of(Export("a", "json"))
