"""A real TensorBoard on the demo logs."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.waiting import address_in, eventually

REPOSITORY = Path(__file__).resolve().parents[2]


class Server:
    def __init__(self, process: subprocess.Popen[str], root: str) -> None:
        self.process = process
        self.root = root

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urlopen(Request(self.root + path), timeout=30) as response:
                return response.status, response.read()
        except HTTPError as error:
            with error:
                return error.code, error.read()

    def json(self, path: str) -> Any:
        return json.loads(self.get(path)[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    base = tmp_path_factory.mktemp("tensorboard")
    # The entry point of an installed package. A second identical one does no harm.
    info = base / "site" / "tb_perfadvisor-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tb_perfadvisor\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "[tensorboard_plugins]\nperf_advisor = tb_perfadvisor.plugin.loader:PerfAdvisorLoader\n"
    )
    shutil.copytree(REPOSITORY / "demo_logs" / "pytorch_input_slow", base / "logs" / "slow")
    shutil.copytree(REPOSITORY / "demo_logs" / "jax_healthy", base / "logs" / "jax")
    log = base / "log.txt"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(base / "site"), str(REPOSITORY)]),
        "PERFADVISOR_CACHE_DIR": str(base / "cache"),
    }
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(base / "logs")]
    command += ["--host", "127.0.0.1", "--port", "0"]
    with log.open("w") as stream:
        process = subprocess.Popen(
            command, cwd=base, env=environment, stdout=stream, stderr=stream, text=True
        )
    try:
        yield Server(process, address_in(log, process))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    # The plugin must print nothing.
    assert "Perf Advisor" not in log.read_text()
    assert "perf_advisor" not in log.read_text()


def test_tab_is_listed_and_active(server: Server) -> None:
    tab = server.json("data/plugins_listing")["perf_advisor"]
    assert tab["enabled"] is True
    assert tab["tab_name"] == "Perf Advisor"
    status, page = server.get("data/plugin_entry.html?name=perf_advisor")
    assert status == 200
    assert b'import("./static/index.js?v=' in page


def test_every_route_answers(server: Server) -> None:
    base = "data/plugin/perf_advisor/api/v1"
    captures = {capture["run"]: capture for capture in server.json(f"{base}/captures")["captures"]}
    assert sorted(captures) == ["jax", "slow"]
    address = f"{base}/captures/{captures['slow']['id']}"
    assert server.get(f"{address}/report")[0] in (200, 202)
    eventually(lambda: server.get(f"{address}/report")[0] == 200, within_s=60)
    report = server.json(f"{address}/report")
    assert report["id"] == captures["slow"]["id"]
    assert report["workers"][0]["file"].startswith("slow/")
    assert (
        sum(part["total_ns"] for part in report["overview"]["breakdown"])
        == (report["overview"]["window_ns"])
    )
    steps = server.json(f"{address}/views/steps")
    assert len(steps["index"]) == len(steps["duration_ns"])
    window = server.json(f"{address}/window?from_ns=0&bins=50")
    assert 0 < len(window["boxes"]["row"]) <= report["workers"][0]["events"]
    exported = json.loads(server.get(f"{address}/export?format=json")[1])
    assert exported["schema_version"] == 1
    assert [item["id"] for item in exported["reports"]] == [report["id"]]
    for form in ("text", "markdown"):
        status, content = server.get(f"{address}/export?format={form}")
        assert status == 200
        assert report["headline"] in " ".join(content.decode().split())
    again = {capture["run"]: capture for capture in server.json(f"{base}/captures")["captures"]}
    assert (again["slow"]["status"], again["slow"]["headline"]) == ("done", report["headline"])
    assert again["jax"]["status"] == "new"


def test_doctor_finds_no_problem(server: Server) -> None:
    notes = server.json("data/plugin/perf_advisor/api/v1/doctor")["notes"]
    assert {note["id"] for note in notes} <= {"profile-missing"}
