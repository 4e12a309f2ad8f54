"""Which key numbers are compared with what has been published."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals, reference_worker
from tb_perfadvisor.signals.efficiency.utilization import references
from tb_perfadvisor.testing import TraceBuilder, run_of

BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"


def program(operator: str) -> Signals:
    builder = TraceBuilder()
    for index in range(30):
        begin = index * 100
        builder.operator(operator, begin, begin + 50, key=f"{index}")
        builder.kernel("k", begin + 60, begin + 90, launched_by=f"{index}")
    return reference_worker(run_of(builder.build()))


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.0, "good"), (0.049, "good"), (0.05, "fair"), (0.2, "poor")]
)
def test_waiting_for_input_in_training(share: float, verdict: str) -> None:
    # The classes of the TensorFlow Profiler: up to 5 %, up to 20 %, and more.
    assert references(program(BACKWARD), share)["input-wait"].verdict == verdict
    assert references(program("aten::addmm"), share) == {}
    assert references(program(BACKWARD), None) == {}
