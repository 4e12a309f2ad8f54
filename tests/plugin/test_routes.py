"""The routes, through TensorBoard's own WSGI application with its warnings made errors."""

import argparse
import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from background import FAKE_WORKER, eventually
from facts_of import facts
from tensorboard.backend import application, security_validator
from tensorboard.plugins import base_plugin
from werkzeug.test import Client, TestResponse

from tb_perfadvisor.engine.cache import ResultCache
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.window import encode_window, make_window
from tb_perfadvisor.plugin import catalogue
from tb_perfadvisor.plugin import plugin as plugin_module
from tb_perfadvisor.plugin import results as results_module
from tb_perfadvisor.plugin.jobs import JobQueue, Limits
from tb_perfadvisor.plugin.plugin import PerfAdvisorPlugin
from tb_perfadvisor.plugin.results import Results
from tb_perfadvisor.report.build import analyse_run
from tb_perfadvisor.report.comparison import Comparison
from tb_perfadvisor.testing import draw, run_of
from tb_perfadvisor.trace import Assembler, EventKind, Source, TrackKind

Behave = Callable[[str], Path]

BASE = "/data/plugin/perf_advisor"
KINETO = '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", '
KINETO += '"pid": 1, "tid": 1, "ts": 10, "dur": 5, "args": {"External id": 1}}]}'


class Tab:
    """A TensorBoard with our plugin and, unless another is given, the fake worker."""

    def __init__(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        worker: tuple[str, ...] | None = FAKE_WORKER,
        **flags: str,
    ) -> None:
        self.logdir = tmp_path / "logs"
        self.logdir.mkdir(exist_ok=True)
        self.cache = ResultCache(tmp_path / "cache")
        self.queue = JobQueue(Limits(60, 0), worker)
        results = Results(self.cache, self.queue)
        monkeypatch.setattr(plugin_module, "open_results", lambda: (results, None))
        self.others: dict[str, Any] = {}
        context = base_plugin.TBContext(
            logdir=flags.pop("logdir", str(self.logdir)),
            flags=argparse.Namespace(**flags),
            plugin_name_to_instance=self.others,
        )
        self.plugin = PerfAdvisorPlugin(context)
        # Each request looks anew: tests put files there in quick succession.
        monkeypatch.setattr(catalogue, "LOCAL_INTERVAL_S", 0.0)
        monkeypatch.setattr(catalogue, "_REST_FACTOR", 0.0)
        self.plugin.start()
        eventually(lambda: not self.plugin._catalogue.is_scanning)
        self.app = application.TensorBoardWSGI([self.plugin])
        self.client = Client(self.app)

    def put(self, run: str, name: str = "w0.1700000000000000000.pt.trace.json") -> None:
        (self.logdir / run).mkdir(parents=True, exist_ok=True)
        (self.logdir / run / name).write_text(KINETO)

    def get(self, path: str, **options: Any) -> TestResponse:
        return self.client.get(f"{BASE}/{path}", **options)

    def post(self, path: str, **options: Any) -> TestResponse:
        return self.client.post(f"{BASE}/{path}", **options)

    def captures(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("api/v1/captures").json["captures"]
        return found

    def only_id(self) -> str:
        (capture,) = self.captures()
        return str(capture["id"])

    def store(self, capture_id: str, **files: bytes) -> None:
        """Put a result into the cache as the worker would."""
        entry = self.plugin._catalogue.snapshot.entries[capture_id]
        staged = self.cache.stage()
        for name, content in files.items():
            (staged / name.replace("__", ".")).write_bytes(content)
        self.cache.commit(staged, entry.key)


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(message: str) -> None:
        raise AssertionError(message)

    monkeypatch.setattr(security_validator, "_maybe_raise_value_error", refuse)


@pytest.fixture
def tab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tab]:
    made = Tab(tmp_path, monkeypatch)
    yield made
    made.queue.close()


def error_of(response: TestResponse) -> dict[str, str]:
    body = response.json
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "where", "hint"}
    assert body["error"]["message"]
    return dict(body["error"])


def test_listing_has_our_tab(tab: Tab) -> None:
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


def test_captures_names_no_path_of_the_machine(tab: Tab, tmp_path: Path) -> None:
    tab.put("a/b")
    tab.put("bad", "x.pt.trace.json")
    (tab.logdir / "bad" / "x.pt.trace.json").write_text("<html>")
    text = tab.get("api/v1/captures").text
    assert str(tmp_path) not in text
    found = json.loads(text)
    (capture,) = found["captures"]
    assert capture["run"] == "a/b"
    assert (capture["status"], capture["headline"], capture["is_synthetic"]) == ("new", None, None)
    assert (capture["format"], capture["framework"], capture["files"]) == ("kineto", "pytorch", 1)
    assert capture["size_bytes"] == len(KINETO)
    assert (capture["profile_run"], capture["profile_host"]) == (None, None)
    assert [one["path"] for one in found["rejected"]] == ["bad/x.pt.trace.json"]


def test_report_is_queued_runs_and_is_served_from_the_cache(tab: Tab, behave: Behave) -> None:
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


def test_second_in_the_queue_knows_its_place(tab: Tab, behave: Behave) -> None:
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


def test_damaged_result_is_computed_again(tab: Tab, behave: Behave, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("behaviour", "status", "message", "where"),
    [
        ("input", 422, "it is broken.", "a.json"),
        ("crash", 500, "the analysis ended without a result (status 1).", "run"),
    ],
)
def test_failure_is_an_error_and_is_not_retried_unasked(
    tab: Tab, behave: Behave, behaviour: str, status: int, message: str, where: str
) -> None:
    log = behave(behaviour)
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


def test_cancel(tab: Tab, behave: Behave) -> None:
    behave("forever")
    tab.put("run")
    capture_id = tab.only_id()
    address = f"api/v1/captures/{capture_id}"
    assert tab.post(f"{address}/cancel").json == {"is_cancelled": False}
    tab.get(f"{address}/report")
    assert tab.post(f"{address}/cancel").json == {"is_cancelled": True}
    answer = tab.get(f"{address}/report")
    assert answer.status_code == 409
    assert error_of(answer)["message"] == "the analysis was cancelled."
    assert tab.captures()[0]["status"] == "new"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://localhost"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        # Behind a proxy that rewrites the host, the browser's own word counts.
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://hub.example"}, 200),
        ({"Origin": "https://hub.example", "X-Forwarded-Host": "hub.example"}, 200),
        # Other sites' pages may send this header only after a preflight, which is refused.
        ({"Origin": "http://hub.example", "X-Perf-Advisor": "tab"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "X-Perf-Advisor": "tab"}, 403),
    ],
)
def test_cancel_refuses_other_sites(tab: Tab, headers: dict[str, str], status: int) -> None:
    tab.put("run")
    answer = tab.post(f"api/v1/captures/{tab.only_id()}/cancel", headers=headers)
    assert answer.status_code == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    "path", ["api/v1/captures", "api/v1/rules", "api/v1/doctor", "static/index.js"]
)
def test_other_methods_are_refused(tab: Tab, method: str, path: str) -> None:
    answer = tab.client.open(f"{BASE}/{path}", method=method)
    assert answer.status_code == 405
    error_of(answer)


def test_cancel_is_post_only(tab: Tab) -> None:
    tab.put("run")
    assert tab.get(f"api/v1/captures/{tab.only_id()}/cancel").status_code == 405


@pytest.mark.parametrize(
    "capture_id",
    ["0123456789ab", "..", "%2e%2e%2fetc%2fpasswd", "%2Fetc%2Fpasswd", "w0.pt.trace.json", "%00"],
)
@pytest.mark.parametrize("rest", ["report", "views/steps", "window", "excerpt", "export"])
def test_unknown_captures_are_404(tab: Tab, capture_id: str, rest: str) -> None:
    tab.put("run")
    answer = tab.get(f"api/v1/captures/{capture_id}/{rest}")
    assert answer.status_code == 404
    assert "passwd" not in error_of(answer)["message"]


def test_unknown_address_is_404_in_json(tab: Tab) -> None:
    for path in ("api/v1/nothing", "api/v1/captures/x/y/z"):
        assert error_of(tab.get(path))
        assert tab.get(path).status_code == 404


def test_view(tab: Tab) -> None:
    tab.put("run")
    capture_id = tab.only_id()
    address = f"api/v1/captures/{capture_id}/views"
    assert tab.get(f"{address}/steps").status_code == 409
    tab.store(capture_id, views__json=b'{"steps": {"index": [1, 2]}}')
    assert tab.get(f"{address}/steps").json == {"index": [1, 2]}
    assert tab.get(f"{address}/ranks").status_code == 404
    assert error_of(tab.get(f"{address}/ranks"))["hint"] == "Views: steps."


def window_bytes() -> bytes:
    assembler = Assembler()
    main = assembler.add_track(TrackKind.HOST_THREAD, label="main")
    names = assembler.intern_all(["a", "b"])
    assembler.add_events(
        [0, 100], [50, 50], kind=[EventKind.OPERATOR, EventKind.LAUNCH], name=names, track=main
    )
    return encode_window(make_window(assembler.finish(Source(path="x", format="test")), 1))


def test_window(tab: Tab) -> None:
    tab.put("run")
    capture_id = tab.only_id()
    address = f"api/v1/captures/{capture_id}/window"
    assert tab.get(address).status_code == 409
    tab.store(capture_id, window__npz=window_bytes())
    assert tab.get(f"{address}?worker=1&from_ns=90&to_ns=200&max_events=5").json == {
        "worker": 1,
        "from_ns": 90,
        "to_ns": 200,
        "tracks": [{"label": "main", "process": "", "kind": "host", "device": None}],
        "events": [{"track": 0, "start_ns": 100, "duration_ns": 50, "name": "b", "kind": "launch"}],
        "claims": [],
        "truncated": 0,
        "left_out": 0,
    }
    whole = tab.get(address).json
    assert (whole["worker"], whole["from_ns"], whole["to_ns"]) == (1, 0, 150)
    assert len(whole["events"]) == 2
    assert tab.get(f"{address}?max_events=1").json["truncated"] == 1
    assert tab.get(f"{address}?worker=0").status_code == 404


@pytest.mark.parametrize(
    "query",
    ["from_ns=-1", "from_ns=x", "from_ns=5&to_ns=5", "max_events=0", f"to_ns={2**70}", "worker=a"],
)
def test_window_refuses_what_is_no_range(tab: Tab, query: str) -> None:
    tab.put("run")
    capture_id = tab.only_id()
    tab.store(capture_id, window__npz=window_bytes())
    answer = tab.get(f"api/v1/captures/{capture_id}/window?{query}")
    assert answer.status_code == 400
    error_of(answer)


def test_excerpt(tab: Tab) -> None:
    tab.put("a b/<run>")
    capture_id = tab.only_id()
    address = f"api/v1/captures/{capture_id}/excerpt"
    assert tab.get(address).status_code == 409
    trace = draw(SLOW)
    analysis = analyse_run(run_of(trace), Config(select=("input-stall",)))
    saving = analysis.ranked[0].finding.saving
    assert saving is not None
    tab.store(
        capture_id,
        window__npz=encode_window(make_window(trace, 0, [saving.claims])),
        report__json=msgspec.json.encode(analysis.report),
    )
    answer = tab.get(f"{address}?finding=0&from_ns=0&to_ns=5000000")
    assert answer.content_type == "application/gzip"
    # A file to be kept as it is: no browser unpacks it.
    assert "Content-Encoding" not in answer.headers
    name = answer.headers["Content-Disposition"]
    assert re.fullmatch(
        r'attachment; filename="perf_advisor_a_b_run[\w.-]*_input-stall.json.gz"', name
    )
    content = json.loads(gzip.decompress(answer.data))
    # The device waits in the first four milliseconds.
    claimed = [one for one in content["traceEvents"] if one["ph"] == "X" and one["pid"] == 1]
    assert [(one["ts"], one["dur"]) for one in claimed] == [(0, 4000)]
    # Without times, around the evidence; without a finding, the whole trace and no marks.
    around = json.loads(gzip.decompress(tab.get(f"{address}?finding=0").data))["otherData"]
    assert around["to_ns"] - around["from_ns"] == pytest.approx(2 * 4_000_000, rel=0.01)
    whole = json.loads(gzip.decompress(tab.get(address).data))
    assert whole["otherData"]["to_ns"] == trace.duration_ns
    assert all(one["pid"] != 1 for one in whole["traceEvents"])
    claims = tab.get(f"api/v1/captures/{capture_id}/window?finding=0&to_ns=2000000").json["claims"]
    assert claims == [[0, 2_000_000]]
    assert tab.get(f"{address}?finding=1").status_code == 404
    assert tab.get(f"{address}?finding=x").status_code == 400
    assert tab.get(f"{address}?from_ns=5&to_ns=5").status_code == 400


SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""


def test_export_before_analysis_and_in_no_format(tab: Tab) -> None:
    tab.put("run")
    address = f"api/v1/captures/{tab.only_id()}/export"
    assert tab.get(f"{address}?format=json").status_code == 409
    answer = tab.get(f"{address}?format=pdf")
    assert answer.status_code == 404
    assert error_of(answer)["hint"].startswith("Formats: html, json, markdown")


def test_rules_and_their_pages(tab: Tab) -> None:
    rules = {rule["id"]: rule for rule in tab.get("api/v1/rules").json["rules"]}
    stall = rules["input-stall"]
    assert stall["category"] == "input"
    assert isinstance(stall["is_preview"], bool)
    page = tab.get("api/v1/rules/input-stall").json
    assert (page["id"], page["title"]) == ("input-stall", stall["title"])
    assert page["page"].startswith("# input-stall")
    assert tab.get("api/v1/rules/none").status_code == 404


def test_doctor_without_profiles(tab: Tab) -> None:
    (tab.logdir / "notes.txt").write_text("")
    found = tab.get("api/v1/doctor").json
    assert found["scan"]["scanned_files"] == 1
    assert [note["id"] for note in found["notes"]] == ["no-profiles"]
    assert found["notes"][0]["message"] == "None of 1 files is a profile."


@pytest.mark.parametrize(
    ("logdir", "flags", "target"),
    [
        ("{logs}", {}, ("run/2024_01_02_03_04_05", "h1")),
        ("", {"logdir_spec": "g:{logs}"}, (None, None)),
    ],
)
def test_profile_target_when_the_profile_tab_is_there(
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
    tab.others["profile"] = object()  # loaded after ours
    (after,) = tab.captures()
    assert (after["profile_run"], after["profile_host"]) == target
    assert after["run"] == ("g/run" if flags else "run")
    notes = [note["id"] for note in tab.get("api/v1/doctor").json["notes"]]
    assert notes == (["profile-tab-logdir-spec"] if flags else [])


def test_a_session_of_which_only_the_export_is_left(tab: Tab) -> None:
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
    # The Profile tab has nothing to link to, and the doctor says so.
    assert (capture["profile_run"], capture["profile_host"]) == (None, None)
    notes = {note["id"]: note for note in tab.get("api/v1/doctor").json["notes"]}
    assert "h1.trace.json" in notes["profile-tab-exports"]["message"]


def test_missing_logdir_is_said_and_nothing_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = Tab(tmp_path, monkeypatch, logdir=str(tmp_path / "not" / "there"))
    found = tab.get("api/v1/captures")
    assert found.json["rejected"][0]["path"] == "there"
    assert found.json["scan"]["is_complete"] is False
    assert str(tmp_path) not in found.text
    assert tab.get("api/v1/doctor").json["notes"][0]["id"] == "logdir-unreadable"


def test_without_any_logdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tab = Tab(tmp_path, monkeypatch, logdir="")
    assert tab.captures() == []
    assert tab.client.get("/data/plugins_listing").json["perf_advisor"]["enabled"] is False
    assert [note["id"] for note in tab.get("api/v1/doctor").json["notes"]] == ["no-logdir"]


def test_static_serves_the_bundle_and_nothing_else(tab: Tab, tmp_path: Path) -> None:
    static = tmp_path / "static"
    (static / "sub").mkdir(parents=True)
    (static / "index.js").write_text("export const render = 1;")
    (static / "index.css").write_text("a {}")
    (static / "notes.py").write_text("secret")
    (tmp_path / "outside.js").write_text("secret")
    (static / "sub" / "inner.js").write_text("secret")
    tab.plugin.static_directory = static
    script = tab.get("static/index.js")
    assert script.text == "export const render = 1;"
    assert script.content_type == "text/javascript; charset=utf-8"
    assert script.headers["X-Content-Type-Options"] == "nosniff"
    assert tab.get("static/index.css").content_type == "text/css; charset=utf-8"
    for name in (
        "../outside.js",
        "%2e%2e/outside.js",
        "..%2foutside.js",
        "sub/inner.js",
        "sub",
        "notes.py",
        "",
        str(tmp_path / "outside.js"),
    ):
        answer = tab.get(f"static/{name}")
        assert answer.status_code == 404, name
        assert "secret" not in answer.text


def test_static_missing_altogether_says_so(tab: Tab, tmp_path: Path) -> None:
    tab.plugin.static_directory = tmp_path / "none"
    answer = tab.get("static/index.js")
    assert answer.status_code == 404
    assert error_of(answer)["message"] == "the tab's bundle is not installed."


def test_text_is_compressed_when_asked_for(tab: Tab) -> None:
    tab.put("run")
    answer = tab.get("api/v1/captures", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(answer.data))["captures"]


def test_what_breaks_inside_is_an_error_without_a_traceback(
    tab: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: Any) -> None:
        raise ZeroDivisionError("/secret/path")

    monkeypatch.setattr(tab.plugin, "_doctor", explode)
    answer = tab.get("api/v1/doctor")
    assert answer.status_code == 500
    assert error_of(answer)["message"] == "something went wrong (ZeroDivisionError)."
    assert "secret" not in answer.text


def test_works_below_a_prefix_and_an_experiment(tab: Tab) -> None:
    tab.put("run")
    prefixed = Client(application.TensorBoardWSGI([tab.plugin], path_prefix="/foo/api/v1"))
    assert prefixed.get(f"/foo/api/v1{BASE}/api/v1/captures").json["captures"]
    assert tab.client.get(f"/experiment/e1{BASE}/api/v1/captures").json["captures"]


def test_unwritable_cache_falls_back_to_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path / "file" / "cache"))
    kept: list[Any] = []
    monkeypatch.setattr(results_module, "_KEPT_ALIVE", kept)
    results, problem = results_module.open_results()
    results.close()
    assert problem is not None
    assert "cannot be written" in problem
    kept[0].cleanup()


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


def test_result_that_comes_while_it_is_asked_for_is_not_made_again(
    tab: Tab, behave: Behave, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = behave("gate")
    tab.put("run")
    address = f"api/v1/captures/{tab.only_id()}/report"
    tab.get(address)
    results = tab.plugin._open_results()
    look = results.read

    def read(entry: Any, name: str) -> bytes | None:
        found = look(entry, name)
        if found is None:  # the job ends after this look, and before its state is asked for
            log.with_name("gate").touch()
            eventually(lambda: results.state(entry) is None)
        return found

    monkeypatch.setattr(results, "read", read)
    assert tab.get(address).status_code == 202
    eventually(lambda: tab.get(address).status_code == 200)
    # Whatever was queued in between has run now.
    eventually(lambda: results.state(entries_of(tab)[0]) is None)
    assert len(log.read_text().splitlines()) == 1


def entries_of(tab: Tab) -> list[Any]:
    return list(tab.plugin._catalogue.snapshot.entries.values())


def test_cancelled_analysis_starts_again_at_once_when_asked(tab: Tab, behave: Behave) -> None:
    log = behave("forever")
    tab.put("run")
    address = f"api/v1/captures/{tab.only_id()}"
    tab.get(f"{address}/report")
    eventually(lambda: log.exists())
    behave("good")
    assert tab.post(f"{address}/cancel").json == {"is_cancelled": True}
    # The process may not have ended yet; the new one waits for it.
    assert tab.get(f"{address}/report?retry=1").status_code == 202
    eventually(lambda: tab.get(f"{address}/report").status_code == 200)
    assert len(log.read_text().splitlines()) == 2


def facts_bytes(*step_ns: int) -> bytes:
    return msgspec.json.encode(facts(*step_ns))


def test_compare(tab: Tab) -> None:
    for run, steps in (("base", (100, 100)), ("deep/fast", (50, 50)), ("slow", (200, 200))):
        tab.put(run)
        tab.captures()
        ids = {one["run"]: one["id"] for one in tab.captures()}
        tab.store(ids[run], facts__json=facts_bytes(*steps))
    address = f"api/v1/compare?base={ids['base']}&target={ids['deep/fast']}&target={ids['slow']}"
    answer = tab.get(address)
    assert answer.status_code == 200
    assert answer.content_type == "application/json"
    comparison = msgspec.json.decode(answer.data, type=Comparison)
    # The tab's own names for the runs, not what the worker called them.
    assert (comparison.base.name, comparison.base.step_time_ns) == ("base", 100)
    assert [(one.run.name, one.verdict, one.change.change_ns) for one in comparison.targets] == [
        ("deep/fast", "faster", -50),
        ("slow", "slower", 100),
    ]


def test_compare_tells_recordings_of_one_run_apart(tab: Tab) -> None:
    for at in (1_700_000_000, 1_700_009_000):
        tab.put("run", f"w0.{at}000000000.pt.trace.json")
    first, second = tab.captures()
    for capture in (first, second):
        tab.store(capture["id"], facts__json=facts_bytes(100, 100))
    compared = tab.get(f"api/v1/compare?base={first['id']}&target={second['id']}").json
    assert compared["base"]["name"] == f"run / {first['session']}"
    assert compared["targets"][0]["run"]["name"] == f"run / {second['session']}"


def test_compare_starts_what_was_not_analysed_and_waits(tab: Tab, behave: Behave) -> None:
    log = behave("gate")
    for run in ("a", "b", "c"):
        tab.put(run)
    ids = [capture["id"] for capture in tab.captures()]
    tab.store(ids[0], facts__json=facts_bytes(100, 100))
    address = f"api/v1/compare?base={ids[0]}&target={ids[1]}&target={ids[2]}"
    first = tab.get(address)
    assert first.status_code == 202
    assert [one["id"] for one in first.json["captures"]] == ids[1:]
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
    ids = {one["run"]: one["id"] for one in tab.captures()}
    address = f"api/v1/compare?base={ids['jax_recompiling']}&target={ids['jax_healthy']}"
    eventually(lambda: tab.get(address).status_code == 200, within_s=60)
    tab.queue.close()
    (target,) = tab.get(address).json["targets"]
    assert (target["run"]["name"], target["verdict"]) == ("jax_healthy", "faster")
    assert target["findings"][0]["rule_id"] == "recompilation"
    assert str(logs) not in tab.get(address).text


def test_compare_with_what_cannot_be_analysed(tab: Tab, behave: Behave) -> None:
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


def test_compare_damaged_facts_are_made_again(tab: Tab, behave: Behave) -> None:
    behave("forever")
    for run in ("a", "b"):
        tab.put(run)
    first, second = (capture["id"] for capture in tab.captures())
    tab.store(first, facts__json=b'{"name": 1}')
    tab.store(second, facts__json=facts_bytes(100, 100))
    answer = tab.get(f"api/v1/compare?base={first}&target={second}")
    assert answer.status_code == 202
    assert [one["id"] for one in answer.json["captures"]] == [first]


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
def test_compare_refuses(tab: Tab, query: str, status: int) -> None:
    tab.put("run")
    answer = tab.get(f"api/v1/compare?{query.format(id=tab.only_id())}")
    assert answer.status_code == status
    assert "passwd" not in json.dumps(error_of(answer))
    assert tab.post("api/v1/compare").status_code == 405


def test_report_decodes_as_the_contract_says() -> None:
    # The answer's own fields, as the frontend reads them, are those of the model.
    from tb_perfadvisor.report import Report

    fields = {field.name for field in msgspec.structs.fields(Report)}
    assert {"id", "headline", "findings", "overview", "steps", "views"} <= fields
