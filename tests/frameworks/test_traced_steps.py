"""Calls that JAX traces are no steps; skipped where it cannot be imported."""

from __future__ import annotations

from typing import Any

import pytest

from tb_perfadvisor.instrument.step_hooks import Rank, TensorFlowCalls

jax = pytest.importorskip("jax")


def test_an_optimizer_that_is_traced_ends_no_step() -> None:
    class Optimizer:
        def apply(self, gradient: Any) -> Any:
            return gradient * 2

    ended: list[Rank] = []
    TensorFlowCalls(lambda rank, key: ended.append(rank)).watch_optimizers(Optimizer)
    optimizer = Optimizer()

    def loss(value: Any) -> Any:
        return optimizer.apply(value) ** 2

    # While it is traced, also for gradients inside of jit, nothing is computed.
    for step in (jax.jit(optimizer.apply), jax.jit(jax.value_and_grad(loss))):
        for _ in range(3):
            step(1.0)
    assert ended == []
    optimizer.apply(1.0)
    jax.grad(loss)(1.0)
    assert ended == [Rank.OPTIMIZER] * 2
