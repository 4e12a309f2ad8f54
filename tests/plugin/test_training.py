"""The route of a whole run: its scalars are read elsewhere, once, and again when they grow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tb_perfadvisor.contract.model import RecordedInfo
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.ingest.event_files import runs
from tb_perfadvisor.plugin import results as results_module
from tb_perfadvisor.plugin.jobs import JobQueue, Limits
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.testing import draw, run_of
from tests.support.event_files import write_scalar
from tests.support.served_tab import Tab, error_of
from tests.support.waiting import eventually

START = 1_700_000_000.0
SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""


def train(tab: Tab, run: str = "run", *, steps: int = 300) -> None:
    """A run of steps of 8 ms, logged each ten steps."""
    write_scalar(
        tab.logdir / run, "train/loss", {step: START + step * 0.008 for step in range(0, steps, 10)}
    )


def ready(tab: Tab, address: str) -> Any:
    eventually(lambda: tab.get(address).status_code == 200)
    return tab.get(address).json


@pytest.fixture
def address(tab: Tab) -> str:
    tab.put("run")
    train(tab)
    (capture,) = tab.captures()
    assert (capture["has_scalars"], capture["reads_scalars"]) == (True, True)
    return f"api/v1/captures/{capture['id']}/training"


def store_report(tab: Tab, capture_id: str | None = None) -> None:
    """Analyze the capture: steps of 10 ms, recorded from 1.0 to 1.02 s after the start."""
    entry = tab.plugin.backend.entry(capture_id or tab.only_id())
    config = Config(select=("input-stall",))
    report = build_report(analyze_run(run_of(draw(SLOW)), config), config)
    start_ns = round((START + 1) * 1e9)
    recorded = RecordedInfo(start_unix_ns=start_ns, end_unix_ns=start_ns + 20_000_000)
    report = msgspec.structs.replace(report, id=entry.id, recorded=recorded)
    tab.store(entry.id, report__json=msgspec.json.encode(report))


def test_run_is_read_elsewhere_and_shown(tab: Tab, address: str) -> None:
    tab.plugin.backend.results()._whole_runs = JobQueue(Limits(60, 0))  # a process of its own
    first = tab.get(address)
    assert first.status_code == 202
    assert set(first.json) == {"status", "stage", "progress", "queue_position"}
    view = ready(tab, address)
    assert (view["run"], view["unit"], view["regimes"][0]["step_ns"]) == ("run", "step", 8_000_000)
    assert view["recordings"] == []
    (unknown,) = view["unknown_profiles"]
    assert unknown["reason"] == "Not analyzed yet: open its report."


def test_profile_is_placed_once_it_is_analyzed(tab: Tab, address: str) -> None:
    ready(tab, address)
    store_report(tab)
    view = ready(tab, f"{address}?price_per_device_hour=2&total_steps=1290")
    (recording,) = view["recordings"]
    # 1.0 s / 8 ms = step 125, in the interval after step 120.
    assert recording["first_step"] == 120
    about = recording["whole_run"]
    # 10 ms with the profiler, 8 ms without.
    assert about["slowdown"] == pytest.approx(0.25)
    assert about["steps_left"] == 1_000
    # One device for 24 hours at 2.
    assert about["cost"]["per_day"] == pytest.approx(48)
    assert view["unknown_profiles"] == []


def test_view_of_a_growing_run_is_made_anew(
    tab: Tab, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ready(tab, address)["times"]["last_step"][-1] == 290
    train(tab, steps=400)
    tab.captures()  # scans again
    # A view made a moment ago is good enough.
    assert tab.get(address).json["times"]["last_step"][-1] == 290
    monkeypatch.setattr(results_module, "_FRESH_S", 0.0)
    assert tab.get(address).status_code == 202
    eventually(lambda: tab.get(address).status_code == 200)
    assert tab.get(address).json["times"]["last_step"][-1] == 390


def test_run_without_event_files_is_an_error(tab: Tab) -> None:
    tab.put("other")
    (capture,) = tab.captures()
    assert (capture["has_scalars"], capture["reads_scalars"]) == (False, False)
    answer = tab.get(f"api/v1/captures/{capture['id']}/training")
    assert answer.status_code == 404
    assert "no event files" in error_of(answer)["message"]


def test_large_event_files_are_read_only_for_their_page(
    tab: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MOST_BYTES_BESIDE_A_REPORT", 100)
    tab.put("run")
    train(tab)
    (capture,) = tab.captures()
    assert (capture["has_scalars"], capture["reads_scalars"]) == (True, False)
    assert ready(tab, f"api/v1/captures/{capture['id']}/training")["run"] == "run"


def test_run_without_steps_has_no_view(tab: Tab) -> None:
    tab.put("run")
    train(tab, steps=10)
    assert ready(tab, f"api/v1/captures/{tab.only_id()}/training") is None


@pytest.mark.parametrize("price", ["x", "0", "-1", "nan", "inf"])
def test_price_is_a_number(tab: Tab, address: str, price: str) -> None:
    answer = tab.get(f"{address}?price_per_device_hour={price}")
    assert answer.status_code == 400


def test_other_sites_start_nothing(tab: Tab, address: str) -> None:
    answer = tab.get(address, headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 403


def test_file_that_is_gone_is_named(tab: Tab, address: str) -> None:
    (file,) = (tab.logdir / "run").glob("*tfevents*")
    Path(file).unlink()
    eventually(lambda: tab.get(address).status_code == 422)
    assert error_of(tab.get(address))["where"].startswith("run/events.out.tfevents")


def test_export_has_what_the_tab_shows(tab: Tab, address: str) -> None:
    ready(tab, address)
    store_report(tab)
    query = "price_per_device_hour=2"
    ready(tab, f"{address}?{query}")
    export = address.replace("training", "export?format=text")
    assert "8.00 ms per step without the profiler" in tab.get(f"{export}&{query}").text
    # For other options, the view was not made yet.
    assert "without the profiler" not in tab.get(export).text


@pytest.fixture
def beside(tab: Tab) -> str:
    """A profile in a directory of profiles beside two runs, one after the other."""
    tab.put("titan/profile_traces/iteration_10")
    train(tab, "titan/tb/first")
    write_scalar(
        tab.logdir / "titan/tb/second",
        "train/loss",
        {step: START + 100 + step * 0.5 for step in range(0, 300, 10)},
    )
    (capture,) = tab.captures()
    assert (capture["has_scalars"], capture["reads_scalars"]) == (True, True)
    return f"api/v1/captures/{capture['id']}/training"


def test_profile_beside_runs_belongs_to_that_of_its_time(tab: Tab, beside: str) -> None:
    store_report(tab)
    view = ready(tab, beside)
    assert (view["run"], view["regimes"][0]["step_ns"]) == ("titan/tb/first", 8_000_000)
    (recording,) = view["recordings"]
    assert recording["first_step"] == 120


def test_profile_beside_runs_without_a_report_has_no_view(tab: Tab, beside: str) -> None:
    assert ready(tab, beside) is None
    # Once its report is there, the run is known.
    store_report(tab)
    assert ready(tab, beside)["run"] == "titan/tb/first"


def test_profile_beside_runs_at_the_same_time_is_refused(tab: Tab) -> None:
    tab.put("titan/profile_traces/iteration_10")
    train(tab, "titan/tb/first")
    train(tab, "titan/tb/second")
    address = f"api/v1/captures/{tab.only_id()}/training"
    store_report(tab)
    eventually(lambda: tab.get(address).status_code == 422)
    assert "several runs" in error_of(tab.get(address))["message"]


def test_profile_beside_a_run_that_goes_on_is_found_once_that_has_logged(
    tab: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_module, "_FRESH_S", 0.0)
    tab.put("titan/profile_traces/iteration_10")
    train(tab, "titan/tb/first", steps=100)
    address = f"api/v1/captures/{tab.only_id()}/training"
    store_report(tab)
    assert ready(tab, address) is None
    train(tab, "titan/tb/first", steps=300)
    tab.captures()  # scans again
    assert ready(tab, address)["recordings"][0]["first_step"] == 120
