from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.support.command import run
from tests.support.corpus_traces import CORPUS
from tests.support.night import examples
from tests.support.object_stores import (
    GCS_ENVIRONMENT,
    S3_ENVIRONMENT,
    ObjectStore,
    gcs_server,
    s3_server,
)

BROWSER = Path(__file__).parent / "browser"
FRAMEWORKS = Path(__file__).parent / "frameworks"
# Fixtures that several tests use and that take seconds to make.
SHARED = {
    *("address", "all_expressions", "built", "corpus_document", "server"),
    *("families", "labeled", "losses", "pytorch_loop", "shapes", "three_ranks", "two_ranks"),
}

# On a busy machine an example may take long and still hold.
settings.register_profile(
    "patient", examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")
# For `scripts.mutants`: the same examples each time, and no search for a small one that fails.
settings.register_profile(
    "mutants",
    settings.get_profile("patient"),
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name long byte strings by their length; those of gzip hold the time of day."""
    return f"{argname}-{len(val)}B" if isinstance(val, bytes) and len(val) > 20 else None


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by what they need, and skip those that need a corpus that is not there."""
    for item in items:
        if item.path.is_relative_to(BROWSER):
            item.add_marker("browser")
            # Most share a server: in a single process, they would take twice the time.
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        else:
            # In one process of a parallel run, so that each server starts and is analyzed once.
            for fixture in SHARED & set(getattr(item, "fixturenames", ())):
                item.add_marker(pytest.mark.xdist_group(fixture))
        if item.path.is_relative_to(FRAMEWORKS):
            item.add_marker("frameworks")
        if "corpus" in getattr(item, "fixturenames", ()):
            item.add_marker("corpus")
        if item.get_closest_marker("corpus") and not CORPUS.is_dir():
            item.add_marker(pytest.mark.skip(reason="PERFADVISOR_CORPUS is not set"))


@pytest.fixture(scope="session")
def corpus() -> Path:
    """A folder of real profiles with independent expected numbers."""
    return CORPUS


@pytest.fixture(scope="session")
def corpus_document(corpus: Path) -> dict[str, Any]:
    """What the command line says of all real profiles."""
    done = run("analyze", corpus, "--format", "json", "--views", "--no-cache")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture(scope="session")
def corpus_reports(corpus_document: dict[str, Any]) -> list[dict[str, Any]]:
    """The reports on them."""
    reports: list[dict[str, Any]] = corpus_document["reports"]
    assert len(reports) > 50
    return reports


@pytest.fixture(scope="session", autouse=True)
def _cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep results out of the user's own cache, and the user's out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PERFADVISOR_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="session")
def _s3_server() -> Iterator[ObjectStore]:
    pytest.importorskip("s3fs")
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def _gcs_server() -> Iterator[ObjectStore]:
    pytest.importorskip("gcsfs")
    with gcs_server() as server:
        yield server


@pytest.fixture
def s3(
    _s3_server: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[ObjectStore]:
    """An S3 of the test's own, which this process and those that it starts find by themselves."""
    environment = {**S3_ENVIRONMENT, "AWS_ENDPOINT_URL": _s3_server.url}
    yield from _in_use(_s3_server, environment, monkeypatch, tmp_path)


@pytest.fixture
def gcs(
    _gcs_server: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[ObjectStore]:
    """A Google Cloud Storage likewise."""
    environment = {**GCS_ENVIRONMENT, "STORAGE_EMULATOR_HOST": _gcs_server.url}
    yield from _in_use(_gcs_server, environment, monkeypatch, tmp_path)


def _in_use(
    server: ObjectStore,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[ObjectStore]:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path / "cache"))
    server.asked()
    yield server
    server.misbehave(None)
    server.wipe()
