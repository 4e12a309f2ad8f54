"""A TensorBoard with our plugin, for tests of its routes."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend import application
from tensorboard.plugins import base_plugin
from werkzeug.test import Client, TestResponse

from tb_perfadvisor.engine.result_cache import ResultCache
from tb_perfadvisor.plugin import backend, catalog
from tb_perfadvisor.plugin import results as results_module
from tb_perfadvisor.plugin.jobs import JobQueue, Limits
from tb_perfadvisor.plugin.plugin import PerfAdvisorPlugin
from tb_perfadvisor.plugin.results import Results
from tests.support.fake_worker import FAKE_WORKER
from tests.support.jobs_here import JobsHere
from tests.support.waiting import eventually

Behave = Callable[[str], Path]

BASE = "/data/plugin/perf_advisor"
KINETO = '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", '
KINETO += '"pid": 1, "tid": 1, "ts": 10, "dur": 5, "args": {"External id": 1}}]}'


class Tab:
    """A TensorBoard with our plugin and, unless another is given, the fake worker.

    Documents, views of whole runs, and without a worker also analyses are made in this process.
    """

    def __init__(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        worker: tuple[str, ...] | None = FAKE_WORKER,
        **flags: Any,
    ) -> None:
        self.logdir = tmp_path / "logs"
        self.logdir.mkdir(exist_ok=True)
        self.cache = ResultCache(tmp_path / "cache")
        monkeypatch.setattr(results_module, "JobQueue", JobsHere)
        monkeypatch.setattr(JobQueue, "warm_up", lambda queue: None)  # each test would start one
        limits = Limits(60, 0)
        self.queue = JobQueue(limits, worker) if worker else JobsHere(limits)
        results = Results(self.cache, self.queue)
        monkeypatch.setattr(backend, "open_results", lambda: (results, None))
        self.others: dict[str, Any] = {}
        context = base_plugin.TBContext(
            logdir=flags.pop("logdir", str(self.logdir)),
            flags=argparse.Namespace(**flags),
            plugin_name_to_instance=self.others,
        )
        self.plugin = PerfAdvisorPlugin(context)
        # Scan on each request, because tests add files in quick succession.
        monkeypatch.setattr(catalog, "LOCAL_INTERVAL_S", 0.0)
        monkeypatch.setattr(catalog, "_REST_FACTOR", 0.0)
        self.plugin.start()
        eventually(lambda: not self.plugin.backend.catalog.is_scanning)
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
        entry = self.plugin.backend.catalog.snapshot.entries[capture_id]
        staged = self.cache.stage()
        for name, content in files.items():
            (staged / name.replace("__", ".")).write_bytes(content)
        self.cache.commit(staged, entry.key)

    def drop(self, capture_id: str) -> None:
        """Remove a result, as the cache does to make room."""
        self.cache.remove(self.plugin.backend.catalog.snapshot.entries[capture_id].key)


def error_of(response: TestResponse) -> dict[str, str]:
    body = response.json
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "where", "hint"}
    assert body["error"]["message"]
    return dict(body["error"])
