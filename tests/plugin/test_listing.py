"""Routes of the log directory, and the plugin in TensorBoard's listing."""

import json
from pathlib import Path

import pytest

from tests.support.served_tab import BASE, KINETO, Tab


def test_tensorboard_lists_the_tab(tab: Tab) -> None:
    tab.put("run")
    tab.get("api/v1/captures")
    listing = tab.client.get("/data/plugins_listing").json
    assert listing["perf_advisor"] == {
        "disable_reload": False,
        "enabled": True,
        "loading_mechanism": {"type": "IFRAME", "module_path": f"{BASE}/static/index.js"},
        "remove_dom": False,
        "tab_name": "Perf Advisor",
    }


def test_captures_of_an_empty_logdir(tab: Tab) -> None:
    answer = tab.get("api/v1/captures")
    assert answer.status_code == 200
    assert answer.content_type == "application/json"
    assert answer.json == {
        "captures": [],
        "rejected": [],
        "scan": {
            "root": "logs",
            "scanned_files": 0,
            "is_complete": True,
            "gaps": [],
            "is_scanning": False,
        },
    }
    assert tab.client.get("/data/plugins_listing").json["perf_advisor"]["enabled"] is False


def test_captures_contain_no_absolute_path(tab: Tab, tmp_path: Path) -> None:
    tab.put("a/b")
    tab.put("bad", "x.pt.trace.json")
    (tab.logdir / "bad" / "x.pt.trace.json").write_text("<html>")
    text = tab.get("api/v1/captures").text
    assert str(tmp_path) not in text
    answer = json.loads(text)
    (capture,) = answer["captures"]
    assert capture["run"] == "a/b"
    assert (capture["status"], capture["headline"], capture["is_synthetic"]) == ("new", None, None)
    assert (capture["format"], capture["framework"], capture["files"]) == ("kineto", "pytorch", 1)
    assert capture["size_bytes"] == len(KINETO)
    assert (capture["profile_run"], capture["profile_host"]) == (None, None)
    assert [file["path"] for file in answer["rejected"]] == ["bad/x.pt.trace.json"]


@pytest.mark.parametrize(
    ("logdir", "flags", "target"),
    [
        ("{logs}", {}, ("run/2024_01_02_03_04_05", "h1")),
        ("", {"logdir_spec": "g:{logs}"}, (None, None)),
    ],
)
def test_profile_target_is_known_with_the_profile_tab(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logdir: str,
    flags: dict[str, str],
    target: tuple[str | None, str | None],
) -> None:
    logs = tmp_path / "logs"
    session = logs / "run" / "plugins" / "profile" / "2024_01_02_03_04_05"
    session.mkdir(parents=True)
    (session / "h1.xplane.pb").write_bytes(b"\x0a\x00")
    flags = {name: value.format(logs=logs) for name, value in flags.items()}
    tab = Tab(tmp_path, monkeypatch, logdir=logdir.format(logs=logs), **flags)
    (before,) = tab.captures()
    assert (before["profile_run"], before["profile_host"]) == (None, None)
    tab.others["profile"] = object()  # loads after this plugin
    (after,) = tab.captures()
    assert (after["profile_run"], after["profile_host"]) == target
    assert after["run"] == ("g/run" if flags else "run")
    notes = [note["id"] for note in tab.get("api/v1/doctor").json["notes"]]
    assert notes == (["profile-tab-logdir-spec"] if flags else [])


def test_session_with_only_an_export_is_a_capture(tab: Tab) -> None:
    session = tab.logdir / "run" / "plugins" / "profile" / "2020_06_01_02_03_04"
    session.mkdir(parents=True)
    (session / "h1.trace.json").write_text(
        '{"traceEvents": [{"ph": "M", "pid": 1, "name": "process_name", '
        '"args": {"name": "/host:CPU"}}]}'
    )
    tab.others["profile"] = object()
    (capture,) = tab.captures()
    assert (capture["run"], capture["session"]) == ("run", "2020_06_01_02_03_04")
    assert (capture["format"], capture["framework"], capture["files"]) == ("chrome", "unknown", 1)
    # There is no link to the Profile tab, and the doctor says why.
    assert (capture["profile_run"], capture["profile_host"]) == (None, None)
    notes = {note["id"]: note for note in tab.get("api/v1/doctor").json["notes"]}
    assert "h1.trace.json" in notes["profile-tab-exports"]["message"]


def test_missing_logdir_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tab = Tab(tmp_path, monkeypatch, logdir=str(tmp_path / "not" / "there"))
    answer = tab.get("api/v1/captures")
    assert answer.json["rejected"][0]["path"] == "there"
    assert answer.json["scan"]["is_complete"] is False
    assert str(tmp_path) not in answer.text
    assert tab.get("api/v1/doctor").json["notes"][0]["id"] == "logdir-unreadable"


def test_without_any_logdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tab = Tab(tmp_path, monkeypatch, logdir="")
    assert tab.captures() == []
    assert tab.client.get("/data/plugins_listing").json["perf_advisor"]["enabled"] is False
    assert [note["id"] for note in tab.get("api/v1/doctor").json["notes"]] == ["no-logdir"]


def test_doctor_without_profiles(tab: Tab) -> None:
    (tab.logdir / "notes.txt").write_text("")
    answer = tab.get("api/v1/doctor").json
    assert answer["scan"]["scanned_files"] == 1
    assert [note["id"] for note in answer["notes"]] == ["no-profiles"]
    assert answer["notes"][0]["message"] == "None of the 1 files is a profile."
