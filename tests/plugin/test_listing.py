"""Routes of the log directory, and the plugin in TensorBoard's listing."""

import json
import os
from pathlib import Path

import pytest

from tb_perfadvisor.instrument import record_requests
from tb_perfadvisor.plugin import backend, catalog
from tb_perfadvisor.plugin.catalog import Catalog, Snapshot
from tb_perfadvisor.plugin.results import Results
from tb_perfadvisor.plugin.routes.listing import describe
from tests.support.served_tab import BASE, KINETO, Tab
from tests.support.waiting import eventually

NOT_UTF8 = r"bad\xff"


def test_tensorboard_lists_the_tab(tab: Tab) -> None:
    tab.put("run")
    tab.get("api/v1/captures")
    listed = tab.client.get("/data/plugins_listing").json["perf_advisor"]
    mechanism = listed.pop("loading_mechanism")
    assert mechanism["type"] == "IFRAME"
    assert mechanism["module_path"].startswith(f"{BASE}/static/index.js?v=")
    assert listed == {
        "disable_reload": False,
        "enabled": True,
        "remove_dom": False,
        "tab_name": "Perf Advisor",
    }


def test_captures_of_an_empty_logdir(tab: Tab) -> None:
    answer = tab.get("api/v1/captures")
    assert answer.status_code == 200
    assert answer.content_type == "application/json"
    body = answer.json
    assert len(body.pop("token")) == 32
    assert body == {
        "allows_notes": True,
        "notes_hint": "",
        "has_code": False,
        "programs": 0,
        "captures": [],
        "rejected": [],
        "rejected_count": 0,
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
    assert (capture["format_label"], capture["framework"], capture["files"]) == (
        "PyTorch trace",
        "pytorch",
        1,
    )
    assert capture["size_bytes"] == len(KINETO)
    assert (capture["profile_run"], capture["profile_host"]) == (None, None)
    assert [file["path"] for file in answer["rejected"]] == ["bad/x.pt.trace.json"]


def test_captures_name_what_to_compare_them_with(tab: Tab) -> None:
    for run in ("lm_slow", "lm_fixed", "other"):
        tab.put(run)
    captures = {capture["run"]: capture for capture in tab.captures()}
    slow, fixed = captures["lm_slow"]["id"], captures["lm_fixed"]["id"]
    pair = {"base": slow, "target": fixed}
    assert captures["lm_slow"]["partners"][0] == {"id": fixed, **pair, "reason": "the run after"}
    assert captures["lm_fixed"]["partners"][0] == {"id": slow, **pair, "reason": "the run before"}
    # Names say nothing of this one: the nearest run of the folder is proposed.
    (partner,) = captures["other"]["partners"]
    assert partner["id"] in (slow, fixed)
    assert partner["reason"] in ("recorded before", "recorded after")


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[object]:
    """The first argument of each call from now on."""
    calls: list[object] = []
    real = getattr(owner, name)

    def call(first: object, *rest: object) -> object:
        calls.append(first)
        return real(first, *rest)

    monkeypatch.setattr(owner, name, call)
    return calls


def test_a_scan_is_worked_out_once(tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    walks = count_calls(monkeypatch, record_requests, "programs_below")
    sortings = count_calls(monkeypatch, backend, "nearby_captures")
    for number in range(30):
        tab.put(f"lm/{number}")
    monkeypatch.setattr(catalog, "LOCAL_INTERVAL_S", 3600.0)
    for _ in range(3):
        assert len(tab.captures()) == 30
    assert (len(walks), len(sortings)) == (1, 1)


def test_a_capture_is_described_without_the_others(
    tab: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        tab.put(f"lm/{number}")
    tab.captures()
    entries = tab.plugin.backend.catalog.snapshot.entries
    looks = count_calls(monkeypatch, Results, "known_row")
    for entry in entries.values():
        (described,) = describe(tab.plugin.backend, [entry])
        assert described["partners"]
    # Nothing is known of its own program, so the one before it may be of the same.
    assert len(looks) == len(entries)


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
    assert (capture["format_label"], capture["framework"], capture["files"]) == (
        "exported profile",
        "unknown",
        1,
    )
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
    assert answer["notes"][0]["message"] == "The file is no profile."


@pytest.mark.skipif(os.name == "nt", reason="Windows forbids such names")
def test_names_that_are_not_utf8_do_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = Tab(tmp_path, monkeypatch, None)
    tab.put("good")
    tab.put(os.fsdecode(b"bad\xff"))
    (tab.logdir / os.fsdecode(b"no\xff.pt.trace.json")).write_text("nothing")
    ids = {capture["run"]: capture["id"] for capture in tab.captures()}
    assert ids.keys() == {"good", NOT_UTF8}
    (rejected,) = tab.get("api/v1/captures").json["rejected"]
    assert rejected["path"] == r"no\xff.pt.trace.json"
    address = f"api/v1/captures/{ids[NOT_UTF8]}/report"
    eventually(lambda: tab.get(address).status_code == 200, within_s=60)
    assert tab.get(address).json["run"] == r"bad\xff"
    assert tab.get("api/v1/doctor").status_code == 200
    tab.queue.close()


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
def test_a_link_to_a_file_elsewhere_shows_a_profile_and_nothing_else(
    tab: Tab, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"password": "hunter2"}')
    profile = tmp_path / "profile.json"
    profile.write_text(KINETO)
    tab.put("run")
    names = {"secret.pt.trace.json": secret, "host.xplane.pb": secret, "p.pt.trace.json": profile}
    for name, target in names.items():
        (tab.logdir / "run" / name).symlink_to(target)
    answer = tab.get("api/v1/captures")
    assert (
        sum(capture["format_label"] == "PyTorch trace" for capture in answer.json["captures"]) == 2
    )
    assert "run/secret.pt.trace.json" in [file["path"] for file in answer.json["rejected"]]
    assert "hunter2" not in answer.text + tab.get("api/v1/doctor").text


ROW = {
    "framework": "pytorch", "device": "CPU", "is_synthetic": False, "step_time_ns": 10_000_000,
    "headline": "h", "first_change": None, "finding": None, "saves_share": None, "severity": None,
}  # fmt: skip


def store_pace(tab: Tab, capture_id: str, *step_ns: int, setup: str = "same") -> None:
    pace = {"block_ns": step_ns, "block_steps": [1] * len(step_ns), "setup": setup}
    tab.store(capture_id, row__json=json.dumps({"row": ROW, "pace": pace}).encode())


def test_recordings_that_got_slower_are_marked(tab: Tab) -> None:
    for step in (100, 200, 300, 400):
        tab.put(f"lm/step_{step:08d}")
    tab.put("other")
    ids = {capture["run"][-3:]: capture["id"] for capture in tab.captures()}
    assert {capture["series"] for capture in tab.captures()} == {"lm", "other"}
    assert tab.get("api/v1/marks").json == {"marks": {}}
    store_pace(tab, ids["100"], *range(100, 110))
    # The recording between them is not analyzed, and none is started.
    store_pace(tab, ids["300"], *range(200, 210))
    store_pace(tab, ids["400"], *range(100, 110))
    store_pace(tab, ids["her"], *range(300, 310))
    marks = tab.get("api/v1/marks").json["marks"]
    assert {key: (each["base"], each["verdict"]) for key, each in marks.items()} == {
        ids["300"]: (ids["100"], "slower"),
        ids["400"]: (ids["300"], "faster"),
    }
    assert [capture["status"] for capture in tab.captures()].count("new") == 1
    # What was compared stays known after the cache has dropped a result to make room.
    tab.drop(ids["100"])
    assert tab.get("api/v1/marks").json["marks"] == marks
    assert [capture["status"] for capture in tab.captures()].count("new") == 2


def test_a_baseline_marks_all_captures_that_do_the_same_work(tab: Tab) -> None:
    for run in ("a", "b", "c"):
        tab.put(run)
    a, b, c = (capture["id"] for capture in tab.captures())
    store_pace(tab, a, *range(100, 110))
    store_pace(tab, b, *range(150, 160))
    store_pace(tab, c, *range(150, 160), setup="another machine")
    marks = tab.get(f"api/v1/marks?baseline={a}").json["marks"]
    assert list(marks) == [b]
    # The means are 104.5 and 154.5.
    assert marks[b]["change_share"] == pytest.approx(154.5 / 104.5 - 1)
    assert tab.get("api/v1/marks?baseline=none").status_code == 404


def unread(count: int) -> Snapshot:
    """A scan that found as many files that are no profiles."""
    files = ((f"run/{at:06}.pt.trace.json", "it is cut off.") for at in range(count))
    return Snapshot(rejected=tuple(files), scanned_files=count)


@pytest.fixture
def crowded(tab: Tab, monkeypatch: pytest.MonkeyPatch) -> Tab:
    monkeypatch.setattr(Catalog, "snapshot", unread(110_000))
    return tab


def test_a_hundred_thousand_unread_files_are_counted_and_sent_in_pages(crowded: Tab) -> None:
    for route in ("captures", "doctor"):
        answer = crowded.get(f"api/v1/{route}")
        assert answer.json["rejected_count"] == 110_000
        assert len(answer.json["rejected"]) == 100
        # A file takes 62 bytes: its name 24, its reason 14, keys and marks 24.
        assert len(answer.data) < 100 * 62 + 2_000
    page = crowded.get("api/v1/rejected?from=109990").json
    assert page["rejected_count"] == 110_000
    assert [file["path"] for file in page["rejected"]] == [
        f"run/{at:06}.pt.trace.json" for at in range(109_990, 110_000)
    ]
    assert crowded.get("api/v1/rejected?from=110000").json["rejected"] == []
    assert crowded.get("api/v1/rejected?from=-1").status_code == 400


def test_unread_files_are_found_by_words(crowded: Tab) -> None:
    # 012340 to 012349 are ten of the names with 01234, and 001234 and 101234 are the others.
    found = crowded.get("api/v1/rejected?text=01234+CUT").json
    assert found["rejected_count"] == 12
    assert found["rejected"][0] == {"path": "run/001234.pt.trace.json", "reason": "it is cut off."}
    assert crowded.get("api/v1/rejected?text=01234+readable").json["rejected_count"] == 0
