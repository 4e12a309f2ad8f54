from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def behave(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Tell the fake worker what to do; returns the file where it signs in."""
    log = tmp_path / "worker.log"
    monkeypatch.setenv("FAKE_WORKER_LOG", str(log))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))

    def tell(behaviour: str) -> Path:
        monkeypatch.setenv("FAKE_WORKER", behaviour)
        return log

    return tell
