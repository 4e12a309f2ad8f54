"""How recordings of JAX end, by stand-ins for its modules."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

Stop = Callable[[Path], None]


def stop_trace(monkeypatch: pytest.MonkeyPatch, state: Any, called: list[str]) -> Stop:
    """The function, of a JAX whose recording is under way."""
    jax, internal, profiler = (ModuleType(n) for n in ("jax", "jax._src", "jax._src.profiler"))
    jax.profiler = SimpleNamespace(stop_trace=lambda: called.append("stop_trace"))  # type: ignore[attr-defined]
    internal.profiler = profiler  # type: ignore[attr-defined]
    profiler._profile_state = state  # type: ignore[attr-defined]
    for module in (jax, internal, profiler):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    name = "tb_perfadvisor.instrument.jax_session"
    monkeypatch.delitem(sys.modules, name, raising=False)
    module = __import__(name, fromlist=["stop_trace"])
    monkeypatch.setitem(sys.modules, name, module)
    found: Stop = module.stop_trace
    return found


def test_only_the_profile_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called: list[str] = []
    state = SimpleNamespace(
        lock=threading.Lock(),
        profile_session=SimpleNamespace(stop=lambda: b"profile"),
        reset=lambda: called.append("reset"),
    )
    stop_trace(monkeypatch, state, called)(tmp_path)
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert file.read_bytes() == b"profile"
    assert file.relative_to(tmp_path).parts[:2] == ("plugins", "profile")
    assert file.name.endswith(".xplane.pb")
    assert called == ["reset"]


def test_other_versions_of_jax_write_it_themselves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called: list[str] = []
    state = SimpleNamespace(lock=threading.Lock(), profile_session=SimpleNamespace())
    stop_trace(monkeypatch, state, called)(tmp_path)
    assert called == ["stop_trace"]
    assert list(tmp_path.iterdir()) == []
