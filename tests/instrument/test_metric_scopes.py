from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tb_perfadvisor.instrument.metric_scopes import SCOPE, name_metrics


@pytest.mark.parametrize(
    ("backend", "scope"), [("tensorflow", "name_scope"), ("jax", "named_scope")]
)
def test_metrics_are_computed_under_a_name(
    backend: str, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    @contextmanager
    def named(name: str) -> Iterator[None]:
        names.append(name)
        yield
        names.pop()

    class Metrics:
        def update_state(self, y: int, sample_weight: int = 1) -> tuple[int, list[str]]:
            return y * sample_weight, list(names)

    monkeypatch.setitem(sys.modules, "keras.src.backend", SimpleNamespace(backend=lambda: backend))
    monkeypatch.setitem(sys.modules, backend, SimpleNamespace(**{scope: named}))
    name_metrics(Metrics)
    assert Metrics().update_state(2, sample_weight=3) == (6, [SCOPE])
    assert names == []
    monkeypatch.setitem(sys.modules, "keras.src.backend", SimpleNamespace(backend=lambda: "torch"))
    assert Metrics().update_state(2) == (2, [])
