"""Analyses requested by the tab: queued, run once, canceled, failed and cached."""

import errno
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tb_perfadvisor.plugin import results as results_module
from tests.support.served_tab import Behave, Tab, error_of
from tests.support.waiting import eventually


def test_report_is_queued_computed_and_cached(tab: Tab, behave: Behave) -> None:
    log = behave("gate")
    tab.put("run")
    address = f"api/v1/captures/{tab.only_id()}/report"
    first = tab.get(address)
    assert first.status_code == 202
    assert first.json["status"] in ("queued", "running")
    running = {
        "status": "running",
        "stage": "checking rules",
        "progress": 0.25,
        "queue_position": None,
    }
    eventually(lambda: tab.get(address).json == running)
    assert tab.captures()[0]["status"] == "running"
    log.with_name("gate").touch()
    eventually(lambda: tab.get(address).status_code == 200)
    assert tab.get(address).data == b"{}"
    (capture,) = tab.captures()
    assert (capture["status"], capture["headline"]) == ("done", "h")
    assert capture["is_synthetic"] is False
    assert len(log.read_text().splitlines()) == 1


def test_queued_analysis_shows_its_position(tab: Tab, behave: Behave) -> None:
    behave("gate")
    for run in ("a", "b", "c"):
        tab.put(run)
    first, second, third = (capture["id"] for capture in tab.captures())
    for capture_id in (first, second, third):
        tab.get(f"api/v1/captures/{capture_id}/report")
    eventually(lambda: tab.get(f"api/v1/captures/{first}/report").json["status"] == "running")
    answer = tab.get(f"api/v1/captures/{third}/report")
    assert answer.json == {
        "status": "queued",
        "stage": "waiting",
        "progress": None,
        "queue_position": 1,
    }


def test_row_starts_the_analysis_and_then_tells_what_it_found(tab: Tab, behave: Behave) -> None:
    log = behave("gate")
    tab.put("run")
    address = f"api/v1/captures/{tab.only_id()}/row"
    assert tab.captures()[0]["step_time_ns"] is None
    first = tab.get(address)
    assert first.status_code == 202
    assert first.json["status"] in ("queued", "running")
    log.with_name("gate").touch()
    eventually(lambda: tab.get(address).status_code == 200)
    row = tab.get(address).json
    assert row == tab.captures()[0]
    assert (row["status"], row["step_time_ns"], row["severity"]) == ("done", 1_000_000, "high")
    # The trace's name has its time: 1,700,000,000 s after 1970.
    assert row["recorded"] == "2023_11_14_22_13_20.000"
    assert len(log.read_text().splitlines()) == 1


def test_row_of_a_failed_analysis_says_why_and_starts_it_again_only_on_request(
    tab: Tab, behave: Behave
) -> None:
    log = behave("input")
    tab.put("run")
    address = f"api/v1/captures/{tab.only_id()}/row"
    tab.get(address)
    eventually(lambda: tab.get(address).status_code == 200)
    row = tab.get(address).json
    assert (row["status"], row["failure"]) == ("failed", "it is broken.")
    assert len(log.read_text().splitlines()) == 1
    behave("good")
    assert tab.get(f"{address}?retry=1").status_code == 202
    eventually(lambda: tab.get(address).json["status"] == "done")


def test_damaged_result_is_recomputed(tab: Tab, behave: Behave, tmp_path: Path) -> None:
    log = behave("good")
    tab.put("run")
    address = f"api/v1/captures/{tab.only_id()}/report"
    tab.get(address)
    eventually(lambda: tab.get(address).status_code == 200)
    (report,) = (tmp_path / "cache" / "entries").glob("*/report.json")
    report.write_bytes(b"{")
    assert tab.get(address).status_code == 202
    eventually(lambda: tab.get(address).status_code == 200)
    assert len(log.read_text().splitlines()) == 2


def closed(tab: Tab) -> None:
    tab.plugin.close()
    tab.queue.close()


def test_results_are_there_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behave: Behave
) -> None:
    log = behave("good")
    tab = Tab(tmp_path, monkeypatch)
    tab.put("run")
    address = f"api/v1/captures/{tab.only_id()}"
    tab.get(f"{address}/report")
    eventually(lambda: tab.get(f"{address}/report").status_code == 200)
    report, row = tab.get(f"{address}/report").data, tab.get(f"{address}/row").json
    closed(tab)
    again = Tab(tmp_path, monkeypatch)
    assert again.captures()[0]["status"] == "done"
    assert again.get(f"{address}/report").data == report
    assert again.get(f"{address}/row").json == row
    closed(again)
    assert len(log.read_text().splitlines()) == 1


def test_an_analysis_that_a_restart_ended_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behave: Behave
) -> None:
    log = behave("forever")
    tab = Tab(tmp_path, monkeypatch)
    tab.put("run")
    address = f"api/v1/captures/{tab.only_id()}/report"
    tab.get(address)
    eventually(lambda: log.exists() and log.read_text() != "")
    closed(tab)
    assert [*(tmp_path / "cache" / "staging").iterdir()] == []
    behave("good")
    again = Tab(tmp_path, monkeypatch)
    assert again.captures()[0]["status"] == "new"
    assert again.get(address).status_code == 202
    eventually(lambda: again.get(address).status_code == 200)
    closed(again)


def test_a_full_disk_is_said_and_leaves_nothing(
    tab: Tab, behave: Behave, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave("good")
    tab.put("run")
    address = f"api/v1/captures/{tab.only_id()}/report"

    def full(path: Path, text: str, **options: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_text", full)
        tab.get(address)
        eventually(lambda: tab.get(address).status_code == 500)
    error = error_of(tab.get(address))
    assert "its result not stored (No space left on device)" in error["message"]
    assert "disk is not full" in error["hint"]
    assert [*(tmp_path / "cache" / "staging").iterdir()] == []
    tab.get(f"{address}?retry=1")
    eventually(lambda: tab.get(address).status_code == 200)


@pytest.mark.parametrize(
    ("behavior", "status", "message", "where"),
    [
        ("input", 422, "it is broken.", "a.json"),
        ("crash", 500, "the analysis ended without a result (status 1).", "run"),
    ],
)
def test_failed_analysis_is_retried_only_on_request(
    tab: Tab, behave: Behave, behavior: str, status: int, message: str, where: str
) -> None:
    log = behave(behavior)
    tab.put("run")
    address = f"api/v1/captures/{tab.only_id()}/report"
    tab.get(address)
    eventually(lambda: tab.get(address).status_code == status)
    error = error_of(tab.get(address))
    assert (error["message"], error["where"]) == (message, where)
    assert "Traceback" not in tab.get(address).text
    assert tab.captures()[0]["status"] == "failed"
    assert len(log.read_text().splitlines()) == 1
    behave("good")
    assert tab.get(f"{address}?retry=1").status_code == 202
    eventually(lambda: tab.get(address).status_code == 200)


def test_concurrent_requests_start_one_analysis(tab: Tab, behave: Behave) -> None:
    log = behave("gate")
    tab.put("run")
    address = f"api/v1/captures/{tab.only_id()}/report"
    seen: list[int] = []
    threads = [
        threading.Thread(target=lambda: seen.append(tab.get(address).status_code))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [202] * 12
    log.with_name("gate").touch()
    eventually(lambda: tab.get(address).status_code == 200)
    assert len(log.read_text().splitlines()) == 1


def test_result_that_appears_during_a_request_is_not_recomputed(
    tab: Tab, behave: Behave, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = behave("gate")
    tab.put("run")
    address = f"api/v1/captures/{tab.only_id()}/report"
    tab.get(address)
    results = tab.plugin.backend.results()
    read_result = results.read

    def read(entry: Any, name: str) -> bytes | None:
        content = read_result(entry, name)
        if content is None:  # the job ends between this read and the check of its state
            log.with_name("gate").touch()
            eventually(lambda: results.state(entry) is None)
        return content

    monkeypatch.setattr(results, "read", read)
    assert tab.get(address).status_code == 202
    eventually(lambda: tab.get(address).status_code == 200)
    # Wait for whatever was queued in between.
    eventually(lambda: results.state(entries_of(tab)[0]) is None)
    assert len(log.read_text().splitlines()) == 1


def entries_of(tab: Tab) -> list[Any]:
    return list(tab.plugin.backend.catalog.snapshot.entries.values())


def test_analysis_can_be_canceled(tab: Tab, behave: Behave) -> None:
    behave("forever")
    tab.put("run")
    capture_id = tab.only_id()
    address = f"api/v1/captures/{capture_id}"
    assert tab.post(f"{address}/cancel").json == {"is_canceled": False}
    tab.get(f"{address}/report")
    assert tab.post(f"{address}/cancel").json == {"is_canceled": True}
    answer = tab.get(f"{address}/report")
    assert answer.status_code == 409
    assert error_of(answer)["message"] == "the analysis was canceled."
    assert tab.captures()[0]["status"] == "new"


def test_canceled_analysis_restarts_on_request(tab: Tab, behave: Behave) -> None:
    log = behave("forever")
    tab.put("run")
    address = f"api/v1/captures/{tab.only_id()}"
    tab.get(f"{address}/report")
    eventually(lambda: log.exists() and log.read_text() != "")
    behave("good")
    assert tab.post(f"{address}/cancel").json == {"is_canceled": True}
    # The new process waits for the canceled one to end.
    assert tab.get(f"{address}/report?retry=1").status_code == 202
    eventually(lambda: tab.get(f"{address}/report").status_code == 200)
    assert len(log.read_text().splitlines()) == 2


def test_view_comes_from_the_result(tab: Tab) -> None:
    tab.put("run")
    capture_id = tab.only_id()
    address = f"api/v1/captures/{capture_id}/views"
    assert tab.get(f"{address}/steps").status_code == 409
    tab.store(capture_id, views__json=b'{"steps": {"index": [1, 2]}}')
    assert tab.get(f"{address}/steps").json == {"index": [1, 2]}
    assert tab.get(f"{address}/ranks").status_code == 404
    assert error_of(tab.get(f"{address}/ranks"))["hint"] == "Views: steps."


def test_unwritable_cache_falls_back_to_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path / "file" / "cache"))
    directories: list[Any] = []
    monkeypatch.setattr(results_module, "_KEPT_ALIVE", directories)
    results, problem = results_module.open_results()
    results.close()
    assert problem is not None
    assert "the cache directory cannot be used" in problem
    directories[0].cleanup()


def test_report_has_the_fields_that_the_frontend_reads() -> None:
    from tb_perfadvisor.report.report import Report

    fields = {field.name for field in msgspec.structs.fields(Report)}
    assert {"id", "headline", "findings", "overview", "steps", "views"} <= fields


def test_other_sites_start_no_analysis_but_see_results(tab: Tab, behave: Behave) -> None:
    log = behave("good")
    tab.put("run")
    address = f"api/v1/captures/{tab.only_id()}/report"
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"User-Agent": "Mozilla/5.0"}):
        answer = tab.get(address, headers=headers)
        assert answer.status_code == 403
        error_of(answer)
    assert not log.exists()
    tab.get(address)
    eventually(lambda: tab.get(address).status_code == 200)
    assert tab.get(address, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200
