from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tensorboard.backend import security_validator

from tests.support.served_tab import Tab


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn warnings of TensorBoard's security validator into errors."""

    def refuse(message: str) -> None:
        raise AssertionError(message)

    monkeypatch.setattr(security_validator, "_maybe_raise_value_error", refuse)


@pytest.fixture
def behave(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Sets the behavior of the fake worker; returns the file in which it logs its starts."""
    log = tmp_path / "worker.log"
    monkeypatch.setenv("FAKE_WORKER_LOG", str(log))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))

    def tell(behavior: str) -> Path:
        monkeypatch.setenv("FAKE_WORKER", behavior)
        return log

    return tell


@pytest.fixture
def tab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tab]:
    made = Tab(tmp_path, monkeypatch)
    yield made
    made.plugin.close()
    made.queue.close()
