"""The button that asks programs to record."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tb_perfadvisor.instrument.record_requests import REQUEST, Requests
from tests.support.served_tab import Tab, error_of


@pytest.fixture
def run(tab: Tab) -> Path:
    directory = tab.logdir / "lm"
    Requests(directory).announce()
    return directory


def test_all_programs_are_asked(tab: Tab, run: Path) -> None:
    assert tab.get("api/v1/captures").json["programs"] == 1
    assert tab.post("api/v1/record").json == {"programs": 1}
    assert (run / REQUEST).is_file()
    assert tab.plugin.backend.catalog._local.hurries_until > time.monotonic()
    Requests(run).withdraw()
    assert tab.get("api/v1/captures").json["programs"] == 0
    assert tab.post("api/v1/record").json == {"programs": 0}


def test_only_a_post_asks(tab: Tab, run: Path) -> None:
    assert tab.get("api/v1/record").status_code == 405
    assert not (run / REQUEST).exists()


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://elsewhere.example"},
        # Its name was made to lead here.
        {"Host": "elsewhere.example", "Origin": "http://elsewhere.example"},
    ],
)
def test_other_sites_are_refused(headers: dict[str, str], tab: Tab, run: Path) -> None:
    answer = tab.post("api/v1/record", headers=headers)
    assert answer.status_code == 403, error_of(answer)
    assert not (run / REQUEST).exists()


@pytest.mark.parametrize(("allowed", "status"), [("", 403), ("localhost", 200)])
def test_shared_servers_ask_only_where_a_flag_allows_it(
    allowed: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"bind_all": True, "perfadvisor_write_hosts": allowed}
    tab = Tab(tmp_path, monkeypatch, None, **flags)
    Requests(tab.logdir / "lm").announce()
    assert tab.get("api/v1/captures").json["programs"] == (status == 200)
    assert tab.post("api/v1/record").status_code == status
    assert (tab.logdir / "lm" / REQUEST).exists() == (status == 200)
    tab.plugin.close()
    tab.queue.close()
