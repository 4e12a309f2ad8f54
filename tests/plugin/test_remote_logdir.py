"""The tab on log directories in object stores, with the real worker in this process."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend import application
from tensorboard.plugins import base_plugin
from werkzeug.test import Client

from tb_perfadvisor.plugin import catalog, results
from tb_perfadvisor.plugin.plugin import PerfAdvisorPlugin
from tests.support.jobs_here import JobsHere
from tests.support.object_stores import ObjectStore, gcs_error, s3_error
from tests.support.waiting import eventually

DEMO = Path(__file__).resolve().parents[2] / "demo_logs"
BASE = "/data/plugin/perf_advisor/api/v1"


class Tab:
    """A TensorBoard with the plugin."""

    def __init__(self, logdir: str = "", logdir_spec: str = "") -> None:
        context = base_plugin.TBContext(
            logdir=logdir,
            flags=argparse.Namespace(logdir_spec=logdir_spec),
            plugin_name_to_instance={},
        )
        self.plugin = PerfAdvisorPlugin(context)
        self.plugin.start()
        self.client = Client(application.TensorBoardWSGI([self.plugin]))

    def get(self, path: str) -> Any:
        answer = self.client.get(f"{BASE}/{path}")
        assert answer.status_code in (200, 202), answer.text
        return answer.json

    def is_active(self) -> bool:
        listing = self.client.get("/data/plugins_listing").json
        return bool(listing["perf_advisor"]["enabled"])

    def scanned(self, path: str = "captures") -> Any:
        """The answer once the scan has finished."""
        eventually(lambda: not self.get(path)["scan"]["is_scanning"])
        return self.get(path)


@pytest.fixture
def open_tab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Tab]]:
    monkeypatch.setattr(results, "JobQueue", JobsHere)
    tabs: list[Tab] = []

    def made(*arguments: str) -> Tab:
        tabs.append(Tab(*arguments))
        return tabs[-1]

    yield made
    for tab in tabs:
        tab.plugin.close()


@pytest.fixture(params=["s3", "gcs"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    found: ObjectStore = request.getfixturevalue(request.param)
    for path in (DEMO / "pytorch_input_slow").iterdir():
        found.put("bucket", f"runs/slow/{path.name}", path.read_bytes())
    found.asked()
    return found


def test_capture_in_a_store_is_listed_and_analyzed(
    store: ObjectStore, open_tab: Callable[..., Tab], monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = open_tab(f"{store.scheme}://bucket/runs")
    answer = tab.scanned()
    (capture,) = answer["captures"]
    assert (capture["run"], capture["framework"], capture["status"]) == ("slow", "pytorch", "new")
    assert (answer["rejected"], answer["scan"]["root"]) == ([], "runs")
    assert store.asked().count("LIST runs/") == 1
    report = f"captures/{capture['id']}/report"
    assert tab.get(report)["status"] in ("queued", "running")
    eventually(lambda: "findings" in tab.get(report), within_s=60)
    assert [finding["rule_id"] for finding in tab.get(report)["findings"]] == [
        "input-stall",
        "loader-in-main-process",
    ]
    # The scan read the whole file, which is small, so the analysis made no request.
    assert store.asked() == []


def test_no_request_is_made_before_the_tab_is_opened(
    store: ObjectStore, open_tab: Callable[..., Tab], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "REMOTE_INTERVAL_S", 0.0)
    monkeypatch.setattr(catalog, "_REST_FACTOR", 0.0)
    tab = open_tab(f"{store.scheme}://bucket/runs")
    for _ in range(20):
        assert tab.is_active()
    assert store.asked() == []
    tab.scanned()
    asked = store.asked()
    for _ in range(20):
        assert tab.is_active()
    time.sleep(0.2)
    assert store.asked() == []
    # A reload without changes lists but does not read.
    assert len(asked) >= 2
    tab.scanned()
    assert set(store.asked()) == {"LIST runs/"}


def test_changed_object_has_a_new_result(
    store: ObjectStore, open_tab: Callable[..., Tab], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "REMOTE_INTERVAL_S", 0.0)
    monkeypatch.setattr(catalog, "_REST_FACTOR", 0.0)
    tab = open_tab(f"{store.scheme}://bucket/runs")
    tab.scanned()
    (before,) = tab.plugin.backend.catalog.snapshot.entries.values()
    (trace,) = (DEMO / "pytorch_input_slow").glob("*.gz")
    content = bytearray(trace.read_bytes())
    content[4] ^= 1  # the time in the gzip header: the same size and content
    store.put("bucket", f"runs/slow/{trace.name}", bytes(content))
    tab.scanned()
    (after,) = tab.plugin.backend.catalog.snapshot.entries.values()
    assert (after.id, after.capture.files[0].size_bytes) == (before.id, len(content))
    assert after.key != before.key


def test_listing_errors_are_reported(
    s3: ObjectStore, gcs: ObjectStore, open_tab: Callable[..., Tab]
) -> None:
    s3.misbehave(lambda asked: s3_error(403, "AccessDenied"))
    gcs.misbehave(lambda asked: gcs_error(403, "a@b.iam does not have storage.objects.list."))
    tab = open_tab("", "one:s3://secret/a/runs,two:gs://secret/b/runs")
    for path in ("captures", "doctor"):
        found = tab.scanned(path)
        reasons = {file["path"]: file["reason"] for file in found["rejected"]}
        assert reasons == {
            "one": "the credentials do not allow to list the files. Grant s3:ListBucket on the "
            "bucket and s3:GetObject on its objects.",
            "two": "the credentials do not allow to list the files. Grant "
            "roles/storage.objectViewer on the bucket: storage.objects.list and "
            "storage.objects.get.",
        }
        # A tunnel may have made the page public.
        assert "secret" not in str(found)
        assert not found["scan"]["is_complete"]
    notes = tab.scanned("doctor")["notes"]
    assert [note["id"] for note in notes[:2]] == ["logdir-unreadable"] * 2
    assert notes[0]["remedy"].startswith("Grant s3:ListBucket")


def test_reading_errors_are_reported(s3: ObjectStore, open_tab: Callable[..., Tab]) -> None:
    (xplane,) = (DEMO / "jax_healthy").rglob("*.xplane.pb")
    s3.put("bucket", "runs/plugins/profile/s/host.xplane.pb", xplane.read_bytes())
    tab = open_tab("s3://bucket/runs")
    (capture,) = tab.scanned()["captures"]
    s3.misbehave(lambda asked: s3_error(403, "AccessDenied"))
    report = f"{BASE}/captures/{capture['id']}/report"
    eventually(lambda: tab.client.get(report).status_code == 422, within_s=60)
    error = tab.client.get(report).json["error"]
    assert error["message"] == "the credentials do not allow to read the file."
    assert error["where"] == "plugins/profile/s/host.xplane.pb"
    assert error["hint"].startswith("Grant s3:GetObject")


def test_local_and_remote_groups_are_both_listed(
    s3: ObjectStore, tmp_path: Path, open_tab: Callable[..., Tab]
) -> None:
    for path in (DEMO / "pytorch_input_slow").iterdir():
        s3.put("bucket", f"runs/slow/{path.name}", path.read_bytes())
        (tmp_path / "runs" / "slow").mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / "slow" / path.name).write_bytes(path.read_bytes())
    s3.asked()
    tab = open_tab("", f"near:{tmp_path}/runs,far:s3://bucket/runs")
    eventually(lambda: len(tab.plugin.backend.catalog.snapshot.entries) == 1)
    assert s3.asked() == []
    assert sorted(capture["run"] for capture in tab.scanned()["captures"]) == [
        "far/slow",
        "near/slow",
    ]
