"""Notes on findings: written by the tab's own user, and by nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tb_perfadvisor.contract.names import run_row
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config, read_config
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.testing import draw, run_of
from tests.support.served_tab import Tab, error_of

SLOW = """
    cell 1ms
    step   |..........|..........|..........|
    main   |DDDDoo....|DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|.....KKKKK|
"""
NOTE = {"finding": "input-stall", "wont_fix": True, "text": "The disk is slow until May."}


@pytest.fixture
def address(tab: Tab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The only capture, once its report is stored."""
    monkeypatch.setenv("PERFADVISOR_DATA_DIR", str(tmp_path / "data"))
    tab.put("lm/run")
    report = build_report(analyze_run(run_of(draw(SLOW)), Config()), Config())
    row = msgspec.json.encode({"row": run_row(report), "pace": None})
    tab.store(tab.only_id(), report__json=msgspec.json.encode(report), row__json=row)
    return f"api/v1/captures/{tab.only_id()}"


def remarks_in(tab: Tab, address: str) -> dict[str, Any]:
    findings = tab.get(f"{address}/report").json["findings"]
    return {each["rule_id"]: each["remark"] for each in findings if each["remark"]}


def test_note_is_kept_shown_and_taken_back(tab: Tab, address: str) -> None:
    assert tab.get("api/v1/captures").json["allows_notes"] is True
    kept = {"wont_fix": True, "text": NOTE["text"]}
    assert tab.post(f"{address}/note", json=NOTE).json == kept
    assert remarks_in(tab, address) == {"input-stall": kept}
    first = tab.get(f"{address}/report").json["first"]
    assert first is None or first["rule_id"] != "input-stall"
    assert tab.post(f"{address}/note", json={"finding": "input-stall"}).status_code == 200
    assert remarks_in(tab, address) == {}


def test_runs_leave_out_what_is_set_aside(tab: Tab, address: str) -> None:
    def row() -> dict[str, Any]:
        (listed,) = tab.get("api/v1/captures").json["captures"]
        return {key: listed[key] for key in ("finding", "first_change", "saves_share", "set_aside")}

    before = row()
    assert before["finding"] == "input-stall"
    assert before["set_aside"] == 0
    tab.post(f"{address}/note", json=NOTE)
    assert row() == {"finding": None, "first_change": None, "saves_share": None, "set_aside": 1}
    report = tab.get(f"{address}/report").json
    assert report["headline"].endswith(". 1 set aside")
    assert report["combined_saving"] is None
    # A note that decides nothing changes no row, nor does one that was taken back.
    tab.post(f"{address}/note", json={**NOTE, "wont_fix": False})
    assert row() == before


def test_notes_are_exported_as_settings(tab: Tab, address: str, tmp_path: Path) -> None:
    tab.post(f"{address}/note", json=NOTE)
    answer = tab.get("api/v1/notes")
    assert "perfadvisor.toml" in answer.headers["Content-Disposition"]
    path = tmp_path / "perfadvisor.toml"
    path.write_text(answer.text, encoding="utf-8")
    (remark,) = read_config(path).remarks
    assert (remark.run, remark.finding, remark.wont_fix) == ("lm/run", "input-stall", True)
    assert remark.text == NOTE["text"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b'{"finding": "input-stall", "by": "me"}', 400),
        (b'{"finding": "step-gap"}', 404),
        (b'{"finding": "input-stall", "text": "' + b"x" * 1001 + b'"}', 413),
        (b'{"finding": "input-stall", "text": "' + b"x" * 20_000 + b'"}', 413),
    ],
)
def test_what_is_no_note_is_refused(tab: Tab, address: str, body: bytes, status: int) -> None:
    answer = tab.post(f"{address}/note", data=body)
    assert answer.status_code == status
    assert error_of(answer)
    assert remarks_in(tab, address) == {}


def test_control_characters_are_not_kept(tab: Tab, address: str) -> None:
    answer = tab.post(f"{address}/note", json={**NOTE, "text": "a\x1b[31m\nb"})
    assert answer.json["text"] == "a\N{REPLACEMENT CHARACTER}[31m\nb"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"User-Agent": "Mozilla/5.0"},
    ],
)
def test_other_sites_write_nothing(tab: Tab, address: str, headers: dict[str, str]) -> None:
    assert tab.post(f"{address}/note", json=NOTE, headers=headers).status_code == 403
    assert remarks_in(tab, address) == {}


def test_notes_are_posted(tab: Tab, address: str) -> None:
    assert tab.get(f"{address}/note").status_code == 405


@pytest.mark.parametrize(
    ("flags", "allows"),
    [
        ({}, True),
        ({"host": "localhost"}, True),
        ({"host": "127.0.0.1", "bind_all": False}, True),
        ({"host": "0.0.0.0"}, False),
        ({"bind_all": True}, False),
        ({"perfadvisor_stay_in_logdir": True}, False),
        ({"bind_all": True, "perfadvisor_write_hosts": "gpu-box,localhost"}, True),
        ({"bind_all": True, "perfadvisor_write_hosts": "gpu-box"}, False),
    ],
)
def test_shared_servers_need_a_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any], allows: bool
) -> None:
    tab = Tab(tmp_path, monkeypatch, **flags)
    answer = tab.get("api/v1/captures").json
    tab.plugin.close()
    assert answer["allows_notes"] is allows
    assert answer["notes_hint"].startswith("" if allows else "Start TensorBoard with `--perfadv")


def test_shared_server_refuses_notes(tab: Tab, address: str) -> None:
    tab.plugin.backend.is_private = False
    answer = tab.post(f"{address}/note", json=NOTE)
    assert answer.status_code == 403
    assert (
        error_of(answer)["hint"] == "Start TensorBoard with `--perfadvisor_write_hosts=localhost`."
    )
    assert remarks_in(tab, address) == {}
