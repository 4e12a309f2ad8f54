"""The route of a run's recordings over time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tb_perfadvisor.comparison.run_facts import RunFacts
from tb_perfadvisor.contract.model import HistoryView, RecordedInfo
from tb_perfadvisor.plugin.routes import documents as route
from tests.support.comparison_facts import facts
from tests.support.event_files import write_scalar
from tests.support.served_tab import Behave, Tab, error_of
from tests.support.waiting import eventually

START = 1_700_000_000


def record(tab: Tab, count: int, run: str = "run") -> list[str]:
    """Recordings 1,000 s apart; returns their ids, the oldest first."""
    for number in range(count):
        tab.put(run, f"w0.{START + 1000 * number}000000000.pt.trace.json")
    found = [capture for capture in tab.captures() if capture["run"] == run]
    return [capture["id"] for capture in sorted(found, key=lambda each: each["session"])]


def store(tab: Tab, capture_id: str, *step_ns: int, **fields: Any) -> None:
    made: RunFacts = facts(*step_ns, **fields)
    tab.store(capture_id, facts__json=msgspec.json.encode(made))


def view_of(tab: Tab, capture_id: str) -> HistoryView:
    answer = tab.get(f"api/v1/captures/{capture_id}/history")
    assert answer.status_code == 200, answer.text
    assert answer.content_type == "application/json"
    return msgspec.json.decode(answer.data, type=HistoryView)


def test_recordings_appear_as_they_are_analyzed(tab: Tab, behave: Behave) -> None:
    ids = record(tab, 3)
    assert [capture["recordings"] for capture in tab.captures()] == [3, 3, 3]
    empty = view_of(tab, ids[1])
    assert (empty.history.name, empty.history.recordings) == ("run", [])
    assert [(each.id, each.is_new) for each in empty.missing] == [(each, True) for each in ids]
    store(tab, ids[0], 100, 100, id=ids[0])
    store(tab, ids[2], 50, 50, id=ids[2])
    view = view_of(tab, ids[1])
    assert [each.run.id for each in view.history.recordings] == [ids[0], ids[2]]
    assert [each.verdict for each in view.history.recordings] == [None, "faster"]
    assert [each.id for each in view.missing] == [ids[1]]
    assert view.earlier == 0


def test_failed_recording_says_why(tab: Tab, behave: Behave) -> None:
    behave("input")
    first, second = record(tab, 2)
    store(tab, first, 100, 100)
    tab.get(f"api/v1/captures/{second}/row")
    eventually(lambda: not view_of(tab, first).missing[0].is_new)
    (missing,) = view_of(tab, first).missing
    assert (missing.id, missing.reason) == (second, "it is broken.")


def test_directories_of_steps_are_one_run(tab: Tab) -> None:
    for step in (20, 1020):
        (first,) = record(tab, 1, f"lm/step_{step:08}")
        started_ns = (START + step) * 10**9
        recorded = RecordedInfo(start_unix_ns=started_ns, end_unix_ns=started_ns + 10**9)
        store(tab, first, 100, 100, recorded=recorded)
    record(tab, 1, "other")
    listed = {capture["run"]: capture["recordings"] for capture in tab.captures()}
    assert listed == {"lm/step_00000020": 2, "lm/step_00001020": 2, "other": 1}
    view = view_of(tab, first)
    assert view.history.name == "lm"
    assert [each.moment.step for each in view.history.recordings] == [20, 1020]


def test_scalars_tell_the_step(tab: Tab) -> None:
    # Steps of 8 ms; recorded 1 s and 2 s after the start: steps 125 and 250, logged each ten.
    write_scalar(
        tab.logdir / "run", "loss", {step: START + step * 0.008 for step in range(0, 400, 10)}
    )
    for capture_id, seconds in zip(record(tab, 2), (1, 2), strict=True):
        started_ns = (START + seconds) * 10**9
        recorded = RecordedInfo(start_unix_ns=started_ns, end_unix_ns=started_ns + 20_000_000)
        store(tab, capture_id, 10_000_000, 10_000_000, recorded=recorded)
    moments = [each.moment for each in view_of(tab, capture_id).history.recordings]
    assert [moment.step for moment in moments] == [120, 250]
    assert [moment.usual_step_ns for moment in moments] == pytest.approx([8e6, 8e6], rel=1e-3)


def test_only_the_latest_of_many(tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "_MAX_RECORDINGS", 2)
    ids = record(tab, 5)
    view = view_of(tab, ids[0])
    assert (view.earlier, [each.id for each in view.missing]) == (3, ids[3:])


def test_single_recording_has_no_history(tab: Tab) -> None:
    (only,) = record(tab, 1)
    answer = tab.get(f"api/v1/captures/{only}/history")
    assert answer.status_code == 404
    assert "recorded only once" in error_of(answer)["message"]
    assert tab.get("api/v1/captures/0123456789ab/history").status_code == 404


def test_other_sites_start_nothing(tab: Tab) -> None:
    first, _ = record(tab, 2)
    store(tab, first, 100, 100)
    address = f"api/v1/captures/{first}/history"
    assert tab.get(address, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
