"""Kinds of steps that one loop runs in turn."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, ms, run_of


def kinds(steps: str) -> set[str]:
    """Names of the kinds among steps of 10 ms: T trains, U trains and updates, F only forward."""
    builder = TraceBuilder()
    for number, step in enumerate(steps):
        start = ms(10 * number)
        builder.step(number, start, start + ms(10))
        builder.operator("aten::mm", start, start + ms(1))
        builder.kernel("gemm", start + ms(1), start + ms(8))
        if step in "TU":
            name = "autograd::engine::evaluate_function: MmBackward0"
            builder.operator(name, start + ms(2), start + ms(3), launches=False)
        if step == "U":
            builder.annotation("Optimizer.step#SGD.step", start + ms(4), start + ms(5))
    found = Signals(run_of(builder.build())).steps
    return {found.kind_names[kind] for kind in found.kind.tolist()}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("UUUUUU", {""}),
        ("FFFFFF", {""}),
        ("UUUUFF", {"training", "forward pass only"}),
        ("UUFFFF", {"training", "forward pass only"}),
        # A single step of a kind is no kind.
        ("UFFFFF", {""}),
        ("UUUUUF", {""}),
        ("TUTUTU", {"accumulates gradients", "updates the parameters"}),
    ],
)
def test_kinds_of_a_training_loop(steps: str, expected: set[str]) -> None:
    assert kinds(steps) == expected
