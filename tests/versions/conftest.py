"""What the smoke suites share: the profiles, and the command in this process."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]
Perfadvisor = Callable[..., str]


@pytest.fixture(scope="session", autouse=True)
def _cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("COLUMNS", "120")
        yield


@pytest.fixture(scope="session")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the demo profiles, because some commands write into their logdir."""
    copy = tmp_path_factory.mktemp("logs") / "runs"
    shutil.copytree(ROOT / "demo_logs", copy, ignore=shutil.ignore_patterns("record"))
    return copy


@pytest.fixture(scope="session")
def programs() -> Path:
    """The programs that the documents show."""
    return ROOT / "docs" / "examples"


@pytest.fixture(scope="session")
def perfadvisor() -> Perfadvisor:
    """Runs the command in this process, and returns what it prints on stdout."""

    def run(*arguments: object, status: int = 0) -> str:
        from tb_perfadvisor.cli import app

        result = CliRunner().invoke(app, [str(each) for each in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, result.output
        assert "because of a bug" not in result.output
        return result.stdout

    return run


@pytest.fixture(scope="session")
def reports(logdir: Path, perfadvisor: Perfadvisor) -> list[dict[str, Any]]:
    """The reports on all profiles, as JSON; written to $SMOKE_REPORTS if it is set."""
    text = perfadvisor("analyze", logdir, "--format", "json")
    if "SMOKE_REPORTS" in os.environ:
        Path(os.environ["SMOKE_REPORTS"]).write_text(text, encoding="utf-8")
    answer = json.loads(text)
    assert answer["rejected"] == []
    found: list[dict[str, Any]] = answer["reports"]
    return found
