"""Comparisons of captures from their stored facts."""

import json
from pathlib import Path

import msgspec
import pytest

from tb_perfadvisor.contract.model import Comparison
from tb_perfadvisor.plugin.results import Results
from tests.support.comparison_facts import facts
from tests.support.served_tab import Behave, Tab, error_of
from tests.support.waiting import eventually


def facts_bytes(*step_ns: int) -> bytes:
    return msgspec.json.encode(facts(*step_ns))


def test_compare_shows_faster_and_slower_runs(tab: Tab) -> None:
    for run, steps in (("base", (100, 100)), ("deep/fast", (50, 50)), ("slow", (200, 200))):
        tab.put(run)
        tab.captures()
        ids = {capture["run"]: capture["id"] for capture in tab.captures()}
        tab.store(ids[run], facts__json=facts_bytes(*steps))
    address = f"api/v1/compare?base={ids['base']}&target={ids['deep/fast']}&target={ids['slow']}"
    answer = tab.get(address)
    assert answer.status_code == 200
    assert answer.content_type == "application/json"
    comparison = msgspec.json.decode(answer.data, type=Comparison)
    # The names of the tab, not those that the worker stored.
    assert (comparison.base.name, comparison.base.step_time_ns) == ("base", 100)
    assert [(t.run.name, t.verdict, t.change.change_ns) for t in comparison.targets] == [
        ("deep/fast", "faster", -50),
        ("slow", "slower", 100),
    ]


def test_compare_names_recordings_of_one_run_by_session(tab: Tab) -> None:
    for at in (1_700_000_000, 1_700_009_000):
        tab.put("run", f"w0.{at}000000000.pt.trace.json")
    first, second = tab.captures()
    for capture in (first, second):
        tab.store(capture["id"], facts__json=facts_bytes(100, 100))
    compared = tab.get(f"api/v1/compare?base={first['id']}&target={second['id']}").json
    assert compared["base"]["name"] == f"run / {first['session']}"
    assert compared["targets"][0]["run"]["name"] == f"run / {second['session']}"


def test_compare_starts_missing_analyses_and_waits(tab: Tab, behave: Behave) -> None:
    log = behave("gate")
    for run in ("a", "b", "c"):
        tab.put(run)
    ids = [capture["id"] for capture in tab.captures()]
    tab.store(ids[0], facts__json=facts_bytes(100, 100))
    address = f"api/v1/compare?base={ids[0]}&target={ids[1]}&target={ids[2]}"
    first = tab.get(address)
    assert first.status_code == 202
    assert [capture["id"] for capture in first.json["captures"]] == ids[1:]
    running = {
        "id": ids[1],
        "status": "running",
        "stage": "checking rules",
        "progress": 0.25,
        "queue_position": None,
    }
    eventually(lambda: tab.get(address).json["captures"][0] == running)
    assert tab.get(address).json["captures"][1]["queue_position"] == 0
    assert len(log.read_text().splitlines()) == 1
    log.with_name("gate").touch()


def test_compare_with_real_analyses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Path(__file__).resolve().parents[2] / "demo_logs"
    tab = Tab(tmp_path, monkeypatch, None, logdir=str(logs))
    ids = {capture["run"]: capture["id"] for capture in tab.captures()}
    address = f"api/v1/compare?base={ids['jax_recompiling']}&target={ids['jax_healthy']}"
    eventually(lambda: tab.get(address).status_code == 200, within_s=60)
    tab.queue.close()
    (target,) = tab.get(address).json["targets"]
    assert (target["run"]["name"], target["verdict"]) == ("jax_healthy", "faster")
    assert target["findings"][0]["rule_id"] == "recompilation"
    assert str(logs) not in tab.get(address).text


def test_compare_fails_if_an_analysis_fails(tab: Tab, behave: Behave) -> None:
    log = behave("input")
    for run in ("a", "b"):
        tab.put(run)
    first, second = (capture["id"] for capture in tab.captures())
    tab.store(first, facts__json=facts_bytes(100, 100))
    address = f"api/v1/compare?base={first}&target={second}"
    tab.get(address)
    eventually(lambda: tab.get(address).status_code == 422)
    assert error_of(tab.get(address))["message"] == "it is broken."
    assert len(log.read_text().splitlines()) == 1
    behave("gate")
    assert tab.get(f"{address}&retry=1").status_code == 202
    log.with_name("gate").touch()


def test_an_analysis_may_end_while_a_comparison_is_requested(
    tab: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("a", "b"):
        tab.put(run)
    first, second = (capture["id"] for capture in tab.captures())
    tab.store(first, facts__json=facts_bytes(100, 100))
    looks = []
    has = Results.has

    def has_and_ends(results: Results, key: str) -> bool:
        """Whether a result is there; the missing one comes after the first look for it."""
        found = has(results, key)
        if not found and not looks:
            looks.append(key)
            tab.store(second, facts__json=facts_bytes(50, 50))
        return found

    monkeypatch.setattr(Results, "has", has_and_ends)
    address = f"api/v1/compare?base={first}&target={second}"
    assert tab.get(address).status_code == 202
    assert len(looks) == 1
    assert tab.get(address).status_code == 200


def test_compare_recomputes_damaged_facts(tab: Tab, behave: Behave) -> None:
    behave("forever")
    for run in ("a", "b"):
        tab.put(run)
    first, second = (capture["id"] for capture in tab.captures())
    tab.store(first, facts__json=b'{"name": 1}')
    tab.store(second, facts__json=facts_bytes(100, 100))
    answer = tab.get(f"api/v1/compare?base={first}&target={second}")
    assert answer.status_code == 202
    assert [capture["id"] for capture in answer.json["captures"]] == [first]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 400),
        ("base={id}", 400),
        ("target={id}", 400),
        ("base={id}&target={id}", 400),
        ("base={id}&base={id}&target={id}", 400),
        ("base={id}&" + "&".join(f"target={index}" for index in range(21)), 400),
        ("base={id}&target=0123456789ab", 404),
        ("base=..%2f..%2fetc%2fpasswd&target={id}", 404),
    ],
)
def test_compare_rejects_bad_queries(tab: Tab, query: str, status: int) -> None:
    tab.put("run")
    answer = tab.get(f"api/v1/compare?{query.format(id=tab.only_id())}")
    assert answer.status_code == status
    assert "passwd" not in json.dumps(error_of(answer))
    assert tab.post("api/v1/compare").status_code == 405
